"""Searching the Hugging Face Hub for models that run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from foredraft.errors import BackendError, ForedraftError, quoted
from foredraft.library.catalogue import PREFERRED_QUANTIZATIONS
from foredraft.library.hub import look_up, not_the_hub
from foredraft.library.hub_errors import translated, transport_error
from foredraft.library.hub_gguf import choose_gguf, gguf_files, vision_of
from foredraft.library.hub_safetensors import has_safetensors
from foredraft.library.repository import SAFETENSORS, SUFFIX
from foredraft.library.stored import quantization_of
from foredraft.library.transfer import TIMEOUT_S, Snapshot

AT_ONCE = 8
"""Repositories that are looked up at the same time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model that can be pulled: its name after the colon ("Q4_K_M"), and the total bytes of its files, that
    of its vision included.
    """

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A repository on the Hub. `downloads`: in the last month; `variants` starts with the default of `pull`,
    and is empty if unknown. `gated`: the owner has to grant access.
    """

    repository: str
    downloads: int
    variants: Sequence[Variant]
    gated: bool


def search(
    query: str,
    *,
    limit: int = 10,
    safetensors: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> list[FoundModel]:
    """Repositories with GGUF files, or safetensors that generate text, whose names contain the words of
    `query`: the most downloaded ones, with sizes. `endpoint` and `token` None mean the Hub library's own
    settings.

    Raises BackendError (no connection, or not the Hub), MissingDependencyError.
    """
    with translated(f"the search for {quoted(query)}", purpose="Searching the Hub", again=""):
        rows = _listed(query, limit, safetensors=safetensors, endpoint=endpoint, token=token)

    def found(row: dict[str, object]) -> FoundModel:
        return _found(row, safetensors=safetensors, endpoint=endpoint, token=token)

    return _side_by_side(found, rows)


def _side_by_side(
    found: Callable[[dict[str, object]], FoundModel], rows: Sequence[dict[str, object]]
) -> list[FoundModel]:
    """What is found for each row. The first error ends it: no more rows are begun, and threads that wait for
    the Hub hold up neither the caller nor the end of the process, as those of an executor would.
    """
    todo, done = SimpleQueue[int](), SimpleQueue[tuple[int, FoundModel | Exception]]()
    for number in range(len(rows)):
        todo.put(number)

    def work() -> None:
        while True:
            try:
                number = todo.get_nowait()
            except Empty:
                return
            try:
                done.put((number, found(rows[number])))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                _empty(todo)
                done.put((number, error))

    for _ in range(min(AT_ONCE, len(rows))):
        Thread(target=work, name="foredraft-hub", daemon=True).start()
    results: dict[int, FoundModel] = {}
    for _ in rows:
        number, result = done.get()
        if isinstance(result, Exception):
            raise result
        results[number] = result
    return [results[number] for number in range(len(rows))]


def _empty(queue: SimpleQueue[int]) -> None:
    with suppress(Empty):
        while True:
            queue.get_nowait()


def _listed(
    query: str, limit: int, *, safetensors: bool, endpoint: str | None, token: str | None
) -> list[dict[str, object]]:
    """The Hub's list of matches: `HfApi.list_models` has no timeout for a silent server."""
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, without __all__
        build_hf_headers,
        hf_raise_for_status,
    )

    api = HfApi(endpoint=endpoint, token=token)
    params: dict[str, str | int | list[str]] = {
        "search": query,
        "filter": [SAFETENSORS, "text-generation"] if safetensors else ["gguf"],
        "sort": "downloads",
        "limit": limit,
    }
    response = get_session().get(
        f"{api.endpoint}/api/models", params=params, headers=build_hf_headers(token=token), timeout=TIMEOUT_S
    )
    hf_raise_for_status(response)
    try:
        rows = response.json()
    except (JSONDecodeError, UnicodeDecodeError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.get("id") for row in rows):
        raise not_the_hub(api.endpoint)
    return rows[:limit]


def _found(
    row: dict[str, object], *, safetensors: bool, endpoint: str | None, token: str | None
) -> FoundModel:
    name, downloads = str(row["id"]), row.get("downloads")
    try:
        with translated(name, purpose="Searching the Hub", again=""):
            snapshot = look_up(name, endpoint, token)
        variants = _safetensors(snapshot) if safetensors else _ggufs(snapshot)
    except ForedraftError as error:
        if isinstance(error, BackendError) and isinstance(error.__cause__, transport_error()):
            raise
        variants = []  # gated, or renamed since
    return FoundModel(name, downloads if isinstance(downloads, int) else 0, variants, bool(row.get("gated")))


def _ggufs(snapshot: Snapshot) -> list[Variant]:
    """All quantisations, the default one first."""
    names = [quantization_of(Path(file.name).stem) or file.name for file in gguf_files(snapshot)]
    variants = [Variant(name, _size(snapshot, name)) for name in dict.fromkeys(names)]
    preferred = {name: rank for rank, name in enumerate(PREFERRED_QUANTIZATIONS)}
    return sorted(variants, key=lambda variant: preferred.get(variant.name, len(preferred)))


def _size(snapshot: Snapshot, quantization: str) -> int:
    files = choose_gguf(snapshot, quantization)
    return sum(file.size for file in (*files, *vision_of(snapshot, files[0])))


def _safetensors(snapshot: Snapshot) -> list[Variant]:
    if not has_safetensors(snapshot):
        return []
    weights = [file.size for file in snapshot.files if file.name.endswith(SUFFIX) and "/" not in file.name]
    return [Variant(SAFETENSORS, sum(weights))]
