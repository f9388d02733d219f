"""Profiles: what a model costs on this machine, kept from run to run.

One JSON file for each model and setting. It is a cache: nothing here raises for what is on the disk. A file
that cannot be used is logged, ignored, and replaced by the next save.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from foredraft.cpu_info import this_processor
from foredraft.files import write_atomically
from foredraft.types import ModelInfo

FORMAT = "foredraft-profile"
VERSION = 4
"""1 did not say on which processor a profile was measured; in 2 V(1) was measured after other sizes; in 3
what the planner learnt had another form."""

LARGEST_FILE = 16_000_000
"""Bytes. A profile has some thousands: a larger file is something else."""

LARGEST_FORWARD = 1 << 14
"""Rows."""

LARGEST_MS = 1e7
"""Nothing that is timed here takes hours."""

_UNSPLIT = 64
"""llama.cpp computes a verified draft (at most 63 rows) at once from this ubatch on."""

_OURS = re.compile(r"[0-9a-f]{32}\.json|\.[0-9a-f]{32}\.json\.\w+")  # with what a crash can leave behind

_log = logging.getLogger(__name__)


def profiles_dir(cache_dir: Path) -> Path:
    """The folder that profiles are kept in; it may not exist yet."""
    return cache_dir / "profiles"


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What V(n) depends on. All text, as in `ModelInfo`; empty where a backend has no such setting.

    `model` is the file's hash, `backend` holds its version. `ubatch` counts only where it is so small that a
    draft is computed in parts, `layers` where some were left off the device. `processor` and `instructions`
    (see `Processor`) tell machines apart that a home directory is shared by, or copied to. `watch`: the
    hidden states that are returned for heads. `positions`: their scaling, where there is one: what the
    planner learns depends on the texts that a model writes. `adapter`: the key of the LoRA adapter
    (`Model.adapters`).
    """

    model: str
    backend: str
    device: str
    threads: str
    kv_type: str
    ubatch: str = ""
    layers: str = ""
    processor: str = ""
    instructions: str = ""
    watch: str = ""
    positions: str = ""
    adapter: str = ""


def key_of(info: ModelInfo, adapter: str = "") -> ProfileKey:
    """The key of a model that is loaded on this machine, computed with an adapter."""
    ubatch = info.settings.get("batch", "").rpartition("/")[2]
    return ProfileKey(
        model=info.file_hash,
        backend=info.backend,
        device=info.device,
        threads=info.settings.get("threads", ""),
        kv_type=info.settings.get("kv_type", ""),
        ubatch=ubatch if ubatch.isdecimal() and int(ubatch) < _UNSPLIT else "",
        layers=info.settings.get("gpu_layers", ""),
        processor=this_processor().name,
        instructions=this_processor().instructions,
        watch=info.settings.get("watch", ""),
        positions=info.settings.get("positions", ""),
        adapter=adapter,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one model costs with one setting; times in milliseconds.

    `curve[depth][rows]` is V(rows) with `depth` tokens in the KV cache; every depth has V(1). A curve has
    steps and may fall where rows are added. `snapshot_ms` and `restore_ms` are what saving and bringing back
    a sequence of the largest depth takes; None where it was not measured. `resize` is what a change of size
    takes, in V(1) (see `planner.cost`); V(n) includes it, V(1) does not. `rounds` counts the measurements
    behind `curve`; `thorough` says that they were made on purpose, every size several times. `learnt` belongs
    to the planner: a JSON object, stored as it is.
    """

    key: ProfileKey
    curve: Mapping[int, Mapping[int, float]]
    measured_at: datetime
    name: str = ""
    snapshot_ms: float | None = None
    restore_ms: float | None = None
    resize: float | None = None
    rounds: int = 0
    thorough: bool = False
    learnt: Mapping[str, Any] = field(default_factory=dict)

    def nearest_depth(self, depth: int) -> int:
        """The depth nearest to `depth` of those there is a curve for."""
        return min(self.curve, key=lambda known: (abs(known - depth), known))


class ProfileStore:
    """The profiles in a folder (`profiles_dir`), which is made by the first save."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: ProfileKey) -> Profile | None:
        """The profile of this model and setting, or None. A file that cannot be used is logged."""
        path, former = self._path(key), self._former_path(key)
        profile = _read(path)
        if profile is None and not path.exists() and former.exists():
            _log.warning(
                "Ignoring the stored profile %s: it has version 1 of the format, which does not say on which "
                "processor it was measured.",
                former,
            )
        if profile is not None and profile.key != key:
            _log.warning("Ignoring the stored profile %s: it is of another model or setting.", path)
            return None
        return profile

    def save(self, profile: Profile) -> bool:
        """Store the profile in place of the one there may be. Returns whether that worked; else it is logged.

        It waits for the disk: not for the decode path.
        """
        path = self._path(profile.key)
        try:
            content = json.dumps(_as_json(profile), allow_nan=False, separators=(",", ":"))
            _parse(json.loads(content))  # what could not be loaded again must not replace what can
            write_atomically(path, content.encode() + b"\n", mode=0o600)
            self._former_path(profile.key).unlink(missing_ok=True)
        except (OSError, TypeError, ValueError, RecursionError, _UnusableError) as error:
            _log.warning("The profile cannot be saved in %s: it %s.", path, _reason(error))
            return False
        return True

    def all(self) -> list[Profile]:
        """Every profile that can be read, by the model's name."""
        found = (_read(path) for path in files(self.folder) if not path.name.startswith("."))
        return sorted((profile for profile in found if profile), key=lambda profile: profile.name)

    def _path(self, key: ProfileKey) -> Path:
        *values, watch, positions, adapter = asdict(key).values()
        later = [watch, positions, adapter]  # fields that came later: left out from the last that is empty on
        while later and not later[-1]:
            later.pop()
        return self._file([*values, *later])

    def _former_path(self, key: ProfileKey) -> Path:
        """Where version 1 kept it, which knew nothing of processors."""
        return self._file(list(asdict(key).values())[:-5])

    def _file(self, identity: Sequence[str]) -> Path:
        return self.folder / f"{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]}.json"


def files(folder: Path) -> list[Path]:
    """The files of profiles in a folder, with what crashes left of some. Raises OSError."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.is_file())


def erase(folder: Path) -> None:
    """Remove them. Raises OSError."""
    for path in files(folder):
        path.unlink(missing_ok=True)


# --- JSON ----------------------------------------------------------------------------------------------


class _UnusableError(Exception):
    """Why a file is ignored, in words that follow "it"."""


def _as_json(profile: Profile) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        **asdict(profile),
        "measured_at": profile.measured_at.isoformat(),
    }


def _read(path: Path) -> Profile | None:
    try:
        if not path.exists():
            return None
        return _parse(_object(path))
    except FileNotFoundError:  # gone since
        return None
    except (OSError, _UnusableError) as error:
        _log.warning("Ignoring the stored profile %s: it %s.", path, _reason(error))
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be reached ({error.strerror or error})"
    return str(error) if isinstance(error, _UnusableError) else f"is not JSON ({error})"


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a pipe would keep us waiting
        raise _UnusableError("is not a file")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise _UnusableError(f"has {size:,} bytes, more than a profile can have")
    try:
        data = json.loads(path.read_bytes(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _UnusableError("is damaged") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _UnusableError("is not a profile")
    if data.get("version") != VERSION:
        raise _UnusableError(f"has version {data.get('version')!r} of the format; this reads {VERSION}")
    return data


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _parse(data: Mapping[str, Any]) -> Profile:
    try:
        return Profile(
            key=_key(data["key"]),
            curve={_count(depth, least=0): _sizes(sizes) for depth, sizes in _items(data["curve"])},
            measured_at=_moment(data["measured_at"]),
            name=_text(data.get("name", "")),
            snapshot_ms=_optional_ms(data.get("snapshot_ms")),
            restore_ms=_optional_ms(data.get("restore_ms")),
            resize=_optional_ms(data.get("resize")),
            rounds=_whole(data.get("rounds", 0)),
            thorough=data.get("thorough") is True,
            learnt=dict(_items(data.get("learnt", {}), least=0)),
        )
    except KeyError as error:
        raise _UnusableError(f"lacks {error}") from None


def _items(value: object, least: int = 1) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or len(value) < least:
        raise _UnusableError(f"has {value!r:.40} in place of an object")
    return list(value.items())


def _key(value: object) -> ProfileKey:
    fields = {name: _text(part) for name, part in _items(value)}
    try:
        return ProfileKey(**fields)
    except TypeError:
        raise _UnusableError("does not say what it is of") from None


def _sizes(value: object) -> dict[int, float]:
    sizes = {_count(rows, least=1): _ms(ms) for rows, ms in _items(value)}
    if max(sizes, default=0) > LARGEST_FORWARD:
        raise _UnusableError(f"holds the cost of {max(sizes)} rows, more than a forward has")
    if 1 not in sizes or not all(sizes.values()):
        raise _UnusableError("holds a curve without V(1), or with a forward that took no time")
    return sizes


def _count(text: str, least: int) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise _UnusableError(f"has {text!r:.40} in place of a number of tokens")
    return int(text)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _UnusableError(f"has {value!r:.40} in place of a count")
    return value


def _ms(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_MS:
        raise _UnusableError(f"has {value!r:.40} in place of milliseconds")
    return float(value)


def _optional_ms(value: object) -> float | None:
    return None if value is None else _ms(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _UnusableError(f"has {value!r:.40} in place of text")
    return value


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(value))
    except ValueError:
        raise _UnusableError(f"has {value!r:.40} in place of a date") from None
    if moment.tzinfo is None:
        raise _UnusableError("does not say of which time zone its date is")
    return moment
