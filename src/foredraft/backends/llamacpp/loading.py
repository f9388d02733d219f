"""Loading a file as a ready model: its parameters, and clear errors for llama.cpp's failures."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft import installation
from foredraft.backends import context_size
from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp import (
    abi,
    binding,
    context_memory,
    devices,
    ext,
    features,
    graphs,
    kernels,
    kv_pages,
    log,
    trial,
)
from foredraft.backends.llamacpp.adapter_file import AdapterFile, check_fits, is_adapter, read_adapter
from foredraft.backends.llamacpp.adapters import load_adapters
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.free_cores import free_cores
from foredraft.backends.llamacpp.gguf_file import check_file, read_gguf
from foredraft.backends.llamacpp.kv_types import (
    EVERYWHERE,
    KV_TYPES,
    automatic_types,
    named_types,
    row_by_row,
)
from foredraft.backends.llamacpp.model import LlamaCppModel, is_recurrent
from foredraft.backends.llamacpp.probe import probed
from foredraft.backends.llamacpp.progress import Progress
from foredraft.backends.llamacpp.recurrent import keeps_states, states_to_keep, takes_back_rightly
from foredraft.backends.llamacpp.rope import positions_in, set_positions
from foredraft.backends.llamacpp.rpc.library import NO_HOSTS, Hosts, connect
from foredraft.backends.llamacpp.shared_weights import SharedWeights
from foredraft.backends.llamacpp.snapshot_key import snapshot_key
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.backends.llamacpp.vision_file import mmproj_of, open_vision
from foredraft.backends.rewind import RewindingModel
from foredraft.backends.rope import Positions, settle
from foredraft.config import DEFAULT_CONTEXT, ModelOptions
from foredraft.cpu_info import first_processor, instructions_of, this_processor
from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ForedraftError,
    ModelFormatError,
    UnsupportedModelError,
)
from foredraft.library.adapter_files import adapter_alone
from foredraft.library.catalogue import stem_of
from foredraft.library.display import display_name
from foredraft.library.fingerprint import fingerprint
from foredraft.library.head_kinds import ARCHITECTURES, no_model
from foredraft.library.kinds import kind_in_gguf, only_embeds
from foredraft.library.mmproj import ARCHITECTURE as VISION
from foredraft.library.mmproj import vision_alone
from foredraft.library.recommended import recommended_in_gguf
from foredraft.types import ModelInfo

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.heads.opening import Opener

_FLASH = {"auto": -1, "off": 0, "on": 1}
_BLOCK = 256  # llama.cpp pads a context to a multiple of this many cells
_X86_64 = {"x86_64", "amd64"}


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Settings of a context; `key` identifies them in caches of measurements."""

    context_length: int
    sequences: int
    threads: int
    batch: int
    ubatch: int
    kv_types: tuple[str, str]
    flash_attention: str
    device: str
    kept_states: int = 0
    watch: tuple[str, ...] = ()
    positions: Positions = field(default_factory=Positions)
    why: str = ""
    """Why the context has that length, in words; see `ModelInfo.context_chosen`."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Memory of the context, not part of its settings: see `ModelInfo`."""

    def key(self) -> str:
        built = (binding.library().key, lib.llama_print_system_info(), this_processor(), self.device)
        chosen: list[object] = [self.kv_types, self.flash_attention, self.ubatch, self.threads]
        if self.kept_states:
            chosen.append(self.kept_states)
        if self.watch:
            chosen.append(f"watch {', '.join(self.watch)}")
        if self.positions.asked:
            chosen.append(self.positions)
        return "|".join(map(str, (*built, *chosen, *_besides())))


def _besides() -> Iterator[str]:
    """Additions to llama.cpp's usual kernels."""
    if own := kernels.identity():
        yield f"Foredraft's kernels {own}"
    if graphs.are_kept():
        yield "graphs kept"


def load_model(path: Path, options: ModelOptions) -> LlamaCppModel | RewindingModel:
    """Load a GGUF. Raises ModelError, CapacityError, ConfigError, BackendError, and then frees everything."""
    check_file(path)
    summary = read_gguf(path)
    if summary.architecture in ARCHITECTURES:
        raise no_model(path)
    if summary.architecture == VISION:
        raise vision_alone(path)
    if is_adapter(summary):
        raise adapter_alone(path)
    if (kind := kind_in_gguf(summary.architecture, summary.metadata)) != "generative":
        raise only_embeds(path.name, kind)
    adapters = check_files(path, options)
    options = replace(options, mmproj=mmproj_of(path, options))
    trial.admit(summary, options)
    if options.mmproj is not None:
        trial.admit_vision(summary, read_gguf(options.mmproj), options)
    for adapter, scale in adapters:
        trial.admit_adapter(summary, adapter.summary, options, scale)
    return open_weights(path, options)


def check_files(path: Path, options: ModelOptions) -> list[tuple[AdapterFile, float]]:
    """Whether the files of vision and of adapters are such, and for this model, by their headers; returns the
    adapters', with their scales. Raises ModelError.
    """
    mmproj_of(path, options)
    files = [part for adapter in options.adapters for part in adapter.files]
    adapters = [(read_adapter(file), scale) for file, scale in files]
    for adapter, _ in adapters:
        check_fits(adapter, read_gguf(path))
    return adapters


def open_weights(
    path: Path, options: ModelOptions, *, as_they_lie: bool = False
) -> LlamaCppModel | RewindingModel:
    """Load a GGUF after its trial, or for it. `as_they_lie`: do not pack its weights for kernels. Raises as
    `load_model` does.
    """
    log.install()
    if not as_they_lie:
        kernels.attach(options.cache_dir)
    types = named_types(options.kv_type)
    hosts = connect(options.rpc, options.cache_dir)
    weights, lines = load_weights(path, options, as_they_lie=as_they_lie, hosts=hosts)
    try:
        hosts.check()
        if lib.llama_model_has_encoder(weights):
            raise _cannot_generate(path)
        _check_watch(path, weights, options.watch)
        adapters = load_adapters(options.adapters, weights, read_gguf(path), as_they_lie=as_they_lie)
        vision = open_vision(weights, options, devices.placed(lines))
    except ForedraftError:
        lib.llama_model_free(weights)
        raise
    shared = SharedWeights(path, weights, lines, types, adapters, as_they_lie, vision, hosts)
    return _open_context(shared, options)


def _open_context(shared: SharedWeights, options: ModelOptions) -> LlamaCppModel | RewindingModel:
    """A model with a context of its own. Raises as `load_model` does, and then frees weights that no
    model uses.
    """
    path, weights = shared.path, shared.pointer
    try:
        context, settings = _context_for(shared, options)
    except ForedraftError:
        shared.free_unused()
        raise
    tokenizer = LlamaCppTokenizer(weights, _chat_template(weights))
    info = describe(path, weights, tokenizer, settings, options)
    info = replace(info, memory={**log.buffer_sizes(shared.lines), **settings.memory, **shared.beside})
    key = snapshot_key(
        path,
        info.file_hash,
        settings.key() if shared.vision is None else f"{settings.key()}|{shared.vision.identity}",
        context_length=settings.context_length,
        layers=options.gpu_layers,
    )
    cores = free_cores(settings.threads) if _threads_may_vary(options, settings) else None
    watched = None
    if options.watch:
        size, capacity = features.size_of(weights, options.watch), int(lib.llama_n_batch(context))
        watched = features.Watched(options.watch, size, capacity)
    loaded = LlamaCppModel(
        weights,
        context,
        tokenizer,
        info,
        settings.sequences,
        cores=cores,
        watched=watched,
        opener=_opener(path, options, settings, in_trial=shared.in_trial) if watched else None,
        adapters=shared.adapters,
        vision=shared.vision,
        hosts=shared.hosts,
        users=shared.users,
        again=lambda sequences: _open_context(
            shared,
            replace(
                options,
                watch=(),
                heads=(),
                sequences=sequences,
                context_length=settings.context_length,
            ),
        ),
    )
    loaded.with_capabilities(snapshot_key=key)
    model = RewindingModel(loaded) if is_recurrent(weights) else loaded
    try:
        if not options.probe:
            return model
        return probed(model, context, settings.key(), options, shared.adapters, vision=shared.vision)
    except BaseException:
        model.close()
        raise


def _context_for(shared: SharedWeights, options: ModelOptions) -> tuple[Any, ContextSettings]:
    """Create the model's context. Raises UnsupportedModelError if it has no KV cache."""
    path, weights, device = shared.path, shared.pointer, devices.placed(shared.lines)
    types = shared.types or automatic_types(
        shared.hosts.kind_of(device),
        _value_size(weights),
        instructions_of(first_processor()),
        flash_attention=options.flash_attention != "off",
        own_kernel=kernels.in_use() is not None,
    )
    settings = _settings(path, weights, options, device, types)
    if not options.context_length:
        settings = _with_length(shared, settings, options)
    elif options.context_length > DEFAULT_CONTEXT:
        context_size.check_fits(
            settings.context_length,
            settings.sequences,
            _bytes_per_token(weights, settings, options),
            context_memory.all_memory(shared.held, shared.hosts),
        )
    create = _create_recurrent if is_recurrent(weights) else create_context
    context, settings = create(weights, settings, fallback=options.kv_type == "auto")
    if not lib.llama_get_memory(context):  # models such as BERT would "decode" zeros
        lib.llama_free(context)
        raise _cannot_generate(path)
    return context, settings


def _check_watch(path: Path, weights: Any, watch: Sequence[str]) -> None:
    architecture = metadata(weights, "general.architecture") or "unknown"
    layers, following = lib.llama_model_n_layer(weights), lib.llama_model_n_layer_nextn(weights)
    features.check(path.name, watch, architecture, layers=layers, following=following)
    features.size_of(weights, watch)
    if watch:
        ext.functions()  # a library may lack them


def _opener(path: Path, options: ModelOptions, settings: ContextSettings, *, in_trial: bool) -> Opener:
    from foredraft.backends.llamacpp.heads.opening import Opener  # which opens them with this module

    return Opener(path, options, settings, in_trial)


def _threads_may_vary(options: ModelOptions, settings: ContextSettings) -> bool:
    """Whether the number is Foredraft's to choose, and no bit depends on it: llama.cpp adds up attention that
    it does not compute row by row in as many parts as there are threads. Other processors' products were not
    looked at, and BLAS computes as it likes.
    """
    exact = row_by_row(settings.kv_types) or settings.flash_attention == "off"
    known = platform.machine().lower() in _X86_64 and not devices.has_accelerator()
    return not options.threads and settings.device == devices.CPU and exact and known


def load_weights(
    path: Path, options: ModelOptions, *, as_they_lie: bool, hosts: Hosts = NO_HOSTS
) -> tuple[Any, list[str]]:
    """Load the weights; also returns llama.cpp's log of it. Raises ModelError, CapacityError, and what
    `options.progress` raises.
    """
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.gpu_layers
    params.devices = hosts.with_gpus()
    params.use_extra_bufts = not as_they_lie
    # Weights that a GPU's driver holds for the processor never reach the kernels.
    params.no_host = not as_they_lie and kernels.in_use() is not None
    params.load_mtp = features.NEXT in options.watch
    params.load_mode = abi.LLAMA_LOAD_MODE_MMAP if options.memory == "mmap" else abi.LLAMA_LOAD_MODE_NONE
    progress = Progress(options.progress)
    params.progress_callback = abi.llama_progress_callback(progress.report)
    with log.capture() as lines:
        weights = lib.llama_model_load_from_file(os.fsencode(path), params)
    if progress.raised is not None:
        if weights:
            lib.llama_model_free(weights)
        raise progress.raised
    if not weights:
        hosts.check()
        raise _load_error(path, log.last_error(lines))
    return weights, lines


@contextmanager
def loaded_without_weights(path: Path) -> Iterator[Any]:
    """llama.cpp's model of a file that is admitted, of which no weight is read. Raises UnsupportedModelError,
    ModelFormatError.
    """
    params = lib.llama_model_default_params()
    params.no_alloc, params.n_gpu_layers, params.load_mode = True, 0, abi.LLAMA_LOAD_MODE_NONE
    params.use_extra_bufts = False  # else llama.cpp copies its list before the kernels are in it
    with log.capture() as lines:
        weights = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not weights:
        raise _load_error(path, log.last_error(lines))
    try:
        yield weights
    finally:
        lib.llama_model_free(weights)


def _cannot_generate(path: Path) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{path.name} does not generate text token by token (an encoder, such as an embedding model).",
        hint="Use a decoder-only language model.",
    )


def _load_error(path: Path, reason: str) -> ForedraftError:
    if "unknown model architecture" in reason:
        return UnsupportedModelError(
            f"{path.name} has an architecture that this llama.cpp does not support ({reason}).",
            hint="A newer version may: " + installation.add("--upgrade", "foredraft"),
        )
    summary = read_gguf(path)  # raises ModelFormatError itself when the file is truncated
    if summary.is_vocab_only:
        return ModelFormatError(
            f"{path.name} contains only a vocabulary, no weights.", hint="Use the full model file."
        )
    if "alloc" in reason or "memory" in reason:
        return CapacityError(
            f"There is not enough memory to load {path.name} ({reason}).",
            hint="Use a smaller or more strongly quantised model.",
        )
    return ModelFormatError(
        f"llama.cpp cannot load {path.name}: {reason}.",
        hint="The file may be damaged: download it again, or try a newer Foredraft.",
    )


def positions_of(path: Path, weights: Any, options: ModelOptions) -> Positions:
    """The positions that a context of the model has. Raises ContextLengthError, ConfigError."""
    file = positions_in(read_gguf(path))
    if lib.llama_model_rope_type(weights) == abi.llama_rope_type.LLAMA_ROPE_TYPE_NONE:
        file = replace(file, kind="")
    return settle(path.name, file, options.rope, options.context_length)


def _settings(
    path: Path, weights: Any, options: ModelOptions, device: str, types: tuple[str, str]
) -> ContextSettings:
    positions = positions_of(path, weights, options)
    return ContextSettings(
        context_length=options.context_length,
        sequences=options.sequences,
        threads=options.threads or physical_cores(),
        # llama.cpp aborts the process if a batch is too small for a row of each sequence.
        batch=max(options.batch, options.sequences),
        ubatch=max(min(options.ubatch, options.batch), options.sequences),
        kv_types=types,
        flash_attention=options.flash_attention,
        device=device,
        watch=options.watch,
        positions=positions,
    )


def _with_length(shared: SharedWeights, settings: ContextSettings, options: ModelOptions) -> ContextSettings:
    """The settings with the context length that memory allows."""
    weights, reach = shared.pointer, settings.positions.reach
    per_token, memory, share = 0.0, None, context_size.SHARE
    if min(reach, options.context_at_most) > DEFAULT_CONTEXT:
        per_token = _bytes_per_token(weights, settings, options)
        memory, share = context_memory.memory_for(
            settings.device,
            untouched=log.buffer_sizes(shared.lines).get("weights_mapped", 0)
            + (shared.vision.compute_bytes if shared.vision is not None else 0),
            budget=options.memory_budget,
            held=shared.held,
            hosts=shared.hosts,
            partly=0 <= options.gpu_layers <= int(lib.llama_model_n_layer(weights)),
        )
    chosen = context_size.choose(reach, options.context_at_most, per_token, memory, share=share)
    return replace(settings, context_length=chosen.length, why=chosen.why)


def _bytes_per_token(weights: Any, settings: ContextSettings, options: ModelOptions) -> float:
    """What a token of the context takes, of all sequences together."""

    def measure(length: int) -> int:
        small = replace(settings, context_length=length, watch=())
        context, made = create_context(weights, small, fallback=options.kv_type == "auto")
        lib.llama_free(context)
        return sum(made.memory.values())

    return context_memory.bytes_per_token(settings.batch, measure)


def _create_recurrent(
    weights: Any, settings: ContextSettings, *, fallback: bool
) -> tuple[Any, ContextSettings]:
    """Create a context with the best number of recurrent states, if llama.cpp can keep any."""
    context, settings = create_context(weights, replace(settings, kept_states=1), fallback=fallback)
    if not keeps_states(context):
        return context, replace(settings, kept_states=0)
    kept = states_to_keep(weights, context)
    lib.llama_free(context)
    context, settings = create_context(weights, replace(settings, kept_states=kept), fallback=False)
    if kept and not takes_back_rightly(weights, context):
        lib.llama_free(context)
        return create_context(weights, replace(settings, kept_states=0), fallback=False)
    return context, settings


def create_context(
    weights: Any,
    settings: ContextSettings,
    *,
    fallback: bool,
    adjust: Callable[[Any], None] = lambda _params: None,
) -> tuple[Any, ContextSettings]:
    """Create a context with these settings; `fallback`: or with the usual KV types if llama.cpp has no others
    for this model. `adjust` changes its parameters. Raises CapacityError, ConfigError, BackendError.
    """
    params = lib.llama_context_default_params()
    padded = -(-settings.context_length // _BLOCK) * _BLOCK
    params.n_ctx = padded * settings.sequences
    params.n_batch = settings.batch
    params.n_ubatch = settings.ubatch
    params.n_seq_max = settings.sequences
    params.n_rs_seq = settings.kept_states
    params.n_threads = params.n_threads_batch = settings.threads
    params.type_k, params.type_v = (KV_TYPES[name] for name in settings.kv_types)
    single = row_by_row(settings.kv_types)
    exact = single and settings.flash_attention == "auto"  # without it the batch size shows
    params.flash_attn_type = _FLASH["on" if exact else settings.flash_attention]
    params.kv_unified = False  # a stream per sequence: exact whatever the others do (docs/exactness.md)
    params.op_offload = settings.device != devices.CPU  # else a GPU computes large products of the "cpu"
    params.no_perf = True
    set_positions(params, settings.positions)
    adjust(params)
    with log.capture() as lines, kv_pages.allocations(lines) as made:
        context = lib.llama_init_from_model(weights, params)
    if context:
        try:
            features.record(context, settings.watch)
        except ForedraftError:
            lib.llama_free(context)
            raise
        kv_pages.give_back(made, lines)
        return context, replace(settings, memory=log.buffer_sizes(lines))
    if fallback and single:
        usual = replace(settings, kv_types=EVERYWHERE)
        return create_context(weights, usual, fallback=False, adjust=adjust)
    reason = log.last_error(lines)
    if "alloc" in reason or "memory" in reason:
        raise CapacityError(
            f"There is not enough memory for a context of {settings.context_length} tokens ({reason}).",
            hint="Use a smaller context (--ctx).",
        )
    if "cache type" in reason or "V cache" in reason:
        raise ConfigError(
            f"This model cannot use a KV cache of {'/'.join(settings.kv_types)}: {reason}.",
            hint="Set the KV cache type to auto or f16.",
        )
    raise BackendError(
        f"llama.cpp cannot create a context: {reason}.", hint="Use a smaller context (--ctx) or batch."
    )


def _rollback(kept_states: int) -> str:
    rewinding = "the recurrent state is copied before a draft, and accepted tokens are recomputed"
    if not kept_states:
        return rewinding
    return f"{kept_states} recurrent states are kept; for longer drafts {rewinding}"


def metadata(weights: Any, key: str) -> str | None:
    """A metadata value as text, or None."""
    size = lib.llama_model_meta_val_str(weights, key.encode(), None, 0)
    if size < 0:
        return None
    buffer = ctypes.create_string_buffer(size + 1)
    lib.llama_model_meta_val_str(weights, key.encode(), buffer, size + 1)
    return buffer.value.decode("utf-8", "replace")


def _value_size(weights: Any) -> int:
    """The size of a head's V, in numbers per token."""
    stated = metadata(weights, f"{metadata(weights, 'general.architecture')}.attention.value_length")
    heads = max(lib.llama_model_n_head(weights), 1)
    return int(stated) if stated else int(lib.llama_model_n_embd(weights)) // heads


def _chat_template(weights: Any) -> str | None:
    raw = lib.llama_model_chat_template(weights, None)
    return raw.decode("utf-8", "replace") if raw else None


def describe(
    path: Path, weights: Any, tokenizer: LlamaCppTokenizer, settings: ContextSettings, options: ModelOptions
) -> ModelInfo:
    """The model's ModelInfo."""
    read = partial(metadata, weights)
    return ModelInfo(
        name=display_name(read("general.name") or "", stem_of(path)),
        path=str(path),
        architecture=read("general.architecture") or "unknown",
        file_hash=fingerprint([path]),
        vocab_size=tokenizer.vocab_size,
        vocab_hash=tokenizer.hash(),
        context_length=settings.context_length,
        trained_context=settings.positions.reach,
        context_chosen=settings.why,
        parameters=int(lib.llama_model_n_params(weights)),
        size_bytes=int(lib.llama_model_size(weights)),
        backend=", ".join((binding.library().name, *_besides())),
        device=settings.device,
        quantization=(lib.llama_ftype_name(lib.llama_model_ftype(weights)) or b"").decode(),
        settings={
            "kv_type": "/".join(settings.kv_types),
            "threads": str(settings.threads),
            "memory": options.memory,
            "sequences": str(settings.sequences),
            "batch": f"{settings.batch}/{settings.ubatch}",
            **({"watch": ", ".join(settings.watch)} if settings.watch else {}),
            **({"vision": options.mmproj.name} if options.mmproj is not None else {}),
            **({"positions": str(settings.positions)} if str(settings.positions) else {}),
            **({"rollback": _rollback(settings.kept_states)} if is_recurrent(weights) else {}),
            **({"gpu_layers": str(options.gpu_layers)} if settings.device != devices.CPU else {}),
        },
        recommended=recommended_in_gguf(read),
        without="Foredraft's kernels" if settings.device == devices.CPU and kernels.are_missing() else "",
        scalable=settings.positions.scalable,
        notes=settings.positions.notes,
    )
