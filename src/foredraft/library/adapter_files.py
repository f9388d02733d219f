"""Naming LoRA adapters: `FILE[:SCALE]`, and the files that an adapter is made of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from foredraft.config import Adapter
from foredraft.errors import ConfigError, ModelNotFoundError, UnsupportedModelError, quoted
from foredraft.library.fingerprint import fingerprint

PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter in PEFT's format."""

MOST = 64
"""Adapters of a model: each is in memory."""


LARGEST_SCALE = 1e6
"""Of an adapter, up or down: far beyond any use, and far from what fp32 cannot hold."""


def is_peft(path: Path) -> bool:
    """Whether this is a folder with an adapter in PEFT's format."""
    return (path / PEFT_CONFIG).is_file()


def parse_adapter(text: str) -> tuple[Path, float]:
    """The file or folder, and the scale, 1 if none is given. Raises ConfigError for a scale that is no number
    of a sensible size.
    """
    whole = Path(text).expanduser()
    name, colon, number = text.rpartition(":")
    if not colon or not name or whole.exists():
        return whole, 1.0
    path = Path(name).expanduser()
    try:
        scale = float(number)
    except ValueError:
        if not path.exists():  # a colon in a name
            return whole, 1.0
        scale = float("nan")
    if not abs(scale) <= LARGEST_SCALE:  # nor NaN
        raise ConfigError(
            f"{quoted(number)} is not an adapter scale.",
            hint="Write FILE:SCALE with a sensible number, such as my-adapter.gguf:0.5, or FILE alone.",
        )
    return path, scale


def check_name(name: object) -> str:
    """The name of an adapter. Raises ConfigError for one that cannot be asked for."""
    fits = isinstance(name, str) and 0 < len(name) <= 256 and name.isprintable()
    if not fits or any(map(str.isspace, str(name))):
        raise ConfigError(
            f"{quoted(name)} is not a name for an adapter.",
            hint="A name is up to 256 printable characters without spaces.",
        )
    return str(name)


def named_adapter(text: str) -> Adapter:
    """The adapter of `[NAME=]FILE[:SCALE]`, by default with the file's name. Raises ConfigError."""
    name, equals, rest = text.partition("=")
    if equals and rest and not Path(text).expanduser().exists() and os.sep not in name:
        return Adapter(check_name(name), (parse_adapter(rest),))
    path, scale = parse_adapter(text)
    stem = path.stem if path.suffix == ".gguf" else path.name
    return Adapter(check_name(stem.replace(" ", "-")), ((path, scale),))


def adapters_of(given: Mapping[str, str | Path | Sequence[str | Path]]) -> tuple[Adapter, ...]:
    """The adapters of an option: each name with `FILE[:SCALE]`, or with several that are applied together.
    Raises ConfigError.
    """
    if not isinstance(given, Mapping) or len(given) > MOST:
        raise ConfigError(
            "adapters is not valid.", hint=f"It maps names to files, {MOST} at most.", setting="adapters"
        )
    found = []
    for name, files in given.items():
        each = [files] if isinstance(files, str | Path) else files
        if (
            not isinstance(each, Sequence)
            or not each
            or not all(isinstance(it, str | Path) and str(it) for it in each)
        ):
            raise ConfigError(
                f"adapters[{quoted(name)}]={files!r} is not valid.",
                hint="An adapter is FILE, FILE:SCALE, or a list of these.",
                setting="adapters",
            )
        parts = tuple((it, 1.0) if isinstance(it, Path) else parse_adapter(it) for it in each)
        found.append(Adapter(check_name(name), parts))
    return tuple(found)


def files_of(path: Path) -> list[Path]:
    """The files of an adapter: itself, or those in its folder. Raises ModelNotFoundError."""
    files = [path / PEFT_CONFIG, path / PEFT_WEIGHTS] if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise ModelNotFoundError(
                f"There is no adapter {path}." if file == path else f"The adapter {path} has no {file.name}.",
                hint="Name a GGUF file, or a folder with adapter_config.json and adapter_model.safetensors.",
            )
    return files


def adapter_alone(path: Path) -> UnsupportedModelError:
    """The error for an adapter where a model is wanted."""
    return UnsupportedModelError(
        f"{path.name} is a LoRA adapter for a model, not a model.",
        hint=f"Name the model, and the adapter: foredraft run -m MODEL --lora {path}",
    )


def key_of(adapter: Adapter) -> str:
    """What an adapter computes, as far as its files tell: see `Model.adapters`. Raises ModelNotFoundError."""
    digest = hashlib.sha256()
    for path, scale in adapter.files:
        files = files_of(path)
        times = [file.stat().st_mtime_ns for file in files]
        digest.update(f"{fingerprint(files)}|{times}|{scale!r}\n".encode())
    return digest.hexdigest()[:32]
