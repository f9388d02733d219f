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
from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp import (
    abi,
    binding,
    devices,
    ext,
    features,
    graphs,
    kernels,
    kv_pages,
    log,
    trial,
)
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.free_cores import free_cores
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.kv_types import (
    EVERYWHERE,
    KV_TYPES,
    automatic_types,
    named_types,
    row_by_row,
)
from foredraft.backends.llamacpp.model import LlamaCppModel, is_recurrent
from foredraft.backends.llamacpp.probe import probed
from foredraft.backends.llamacpp.recurrent import keeps_states, states_to_keep, takes_back_rightly
from foredraft.backends.llamacpp.snapshot_key import snapshot_key
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.backends.rewind import RewindingModel
from foredraft.config import ModelOptions
from foredraft.cpu_info import first_processor, instructions_of, this_processor
from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ContextLengthError,
    ForedraftError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from foredraft.library.catalogue import stem_of
from foredraft.library.display import display_name
from foredraft.library.fingerprint import fingerprint
from foredraft.library.head_kinds import ARCHITECTURES, no_model
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
    memory: Mapping[str, int] = field(default_factory=dict)
    """Memory of the context, not part of its settings: see `ModelInfo`."""

    def key(self) -> str:
        built = (binding.library().key, lib.llama_print_system_info(), this_processor(), self.device)
        chosen: list[object] = [self.kv_types, self.flash_attention, self.ubatch, self.threads]
        if self.kept_states:
            chosen.append(self.kept_states)
        if self.watch:
            chosen.append(f"watch {', '.join(self.watch)}")
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
    trial.admit(summary, options)
    return open_weights(path, options)


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
    weights, lines = load_weights(path, options, as_they_lie=as_they_lie)
    try:
        if lib.llama_model_has_encoder(weights):
            raise _cannot_generate(path)
        _check_watch(path, weights, options.watch)
    except ForedraftError:
        lib.llama_model_free(weights)
        raise
    return _open_context(_Weights(path, weights, lines, types, in_trial=as_they_lie), options)


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of a file, and the open models that compute with them, the last of which frees them."""

    path: Path
    pointer: Any
    lines: Sequence[str]
    types: tuple[str, str] | None
    in_trial: bool
    users: set[LlamaCppModel] = field(default_factory=set)


def _open_context(shared: _Weights, options: ModelOptions) -> LlamaCppModel | RewindingModel:
    """A model with a context of its own. Raises as `load_model` does, and then frees weights that nobody
    uses.
    """
    path, weights = shared.path, shared.pointer
    try:
        context, settings = _context_for(path, weights, options, devices.placed(shared.lines), shared.types)
    except ForedraftError:
        if not shared.users:
            lib.llama_model_free(weights)
        raise
    tokenizer = LlamaCppTokenizer(weights, _chat_template(weights))
    info = describe(path, weights, tokenizer, settings, options)
    info = replace(info, memory={**log.buffer_sizes(shared.lines), **settings.memory})
    key = snapshot_key(
        path,
        info.file_hash,
        settings.key(),
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
        users=shared.users,
        again=lambda sequences: _open_context(
            shared, replace(options, watch=(), heads=(), sequences=sequences)
        ),
    )
    loaded.with_capabilities(snapshot_key=key)
    model = RewindingModel(loaded) if is_recurrent(weights) else loaded
    try:
        return probed(model, context, settings.key(), options) if options.probe else model
    except BaseException:
        model.close()
        raise


def _context_for(
    path: Path, weights: Any, options: ModelOptions, device: str, types: tuple[str, str] | None
) -> tuple[Any, ContextSettings]:
    """Create the model's context. Raises UnsupportedModelError if it has no KV cache."""
    types = types or automatic_types(
        device,
        _value_size(weights),
        instructions_of(first_processor()),
        flash_attention=options.flash_attention != "off",
        own_kernel=kernels.in_use() is not None,
    )
    settings = _settings(path, weights, options, device, types)
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


def check_file(path: Path) -> None:
    """Raises ModelNotFoundError or ModelFormatError for faults that are visible without llama.cpp."""
    if not path.exists():
        raise ModelNotFoundError(
            f"There is no file {path}.", hint="'foredraft models list' shows the models you have."
        )
    if not path.is_file():
        raise ModelFormatError(f"{path} is not a file.", hint="Name the GGUF file itself.")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelNotFoundError(
            f"Cannot read {path}: {error.strerror}.", hint="Check the file's permissions."
        ) from None
    if magic != b"GGUF":
        begins = f"it starts with {magic.decode('latin-1')!r}" if magic else "it is empty"
        raise ModelFormatError(
            f"{path} is not a GGUF file ({begins}).",
            hint="Convert models in other formats to GGUF with llama.cpp's converters.",
        )


class _Progress:
    """Callback for llama.cpp with the loaded fraction of the weights. An exception of `progress` cannot pass
    through native code: it is kept in `raised`, and llama.cpp stops loading.
    """

    def __init__(self, progress: Callable[[float], None] | None) -> None:
        self._progress = progress
        self.raised: BaseException | None = None

    def report(self, fraction: float, _user_data: object) -> bool:
        if self._progress is not None:
            try:
                self._progress(fraction)
            except BaseException as error:  # noqa: BLE001 - raised again outside of native code
                self.raised = error
        return self.raised is None


def load_weights(path: Path, options: ModelOptions, *, as_they_lie: bool) -> tuple[Any, list[str]]:
    """Load the weights; also returns llama.cpp's log of it. Raises ModelError, CapacityError, and what
    `options.progress` raises.
    """
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.gpu_layers
    params.use_extra_bufts = not as_they_lie
    # Weights that a GPU's driver holds for the processor never reach the kernels.
    params.no_host = not as_they_lie and kernels.in_use() is not None
    params.load_mtp = features.NEXT in options.watch
    params.load_mode = abi.LLAMA_LOAD_MODE_MMAP if options.memory == "mmap" else abi.LLAMA_LOAD_MODE_NONE
    progress = _Progress(options.progress)
    callback = abi.llama_progress_callback(progress.report)
    params.progress_callback = callback
    with log.capture() as lines:
        weights = lib.llama_model_load_from_file(os.fsencode(path), params)
    if progress.raised is not None:
        if weights:
            lib.llama_model_free(weights)
        raise progress.raised
    if not weights:
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


def _settings(
    path: Path, weights: Any, options: ModelOptions, device: str, types: tuple[str, str]
) -> ContextSettings:
    trained = int(lib.llama_model_n_ctx_train(weights))
    if options.context_length > trained > 0:
        raise ContextLengthError(
            f"{path.name} was trained for {trained} tokens of context, not {options.context_length}.",
            hint=f"Use a context of at most {trained}.",
        )
    default = min(trained or options.context_at_most, options.context_at_most)
    return ContextSettings(
        context_length=options.context_length or default,
        sequences=options.sequences,
        threads=options.threads or physical_cores(),
        # llama.cpp aborts the process if a batch is too small for a row of each sequence.
        batch=max(options.batch, options.sequences),
        ubatch=max(min(options.ubatch, options.batch), options.sequences),
        kv_types=types,
        flash_attention=options.flash_attention,
        device=device,
        watch=options.watch,
    )


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
        trained_context=int(lib.llama_model_n_ctx_train(weights)),
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
            **({"rollback": _rollback(settings.kept_states)} if is_recurrent(weights) else {}),
            **({"gpu_layers": str(options.gpu_layers)} if settings.device != devices.CPU else {}),
        },
        recommended=recommended_in_gguf(read),
        without="Foredraft's kernels" if settings.device == devices.CPU and kernels.are_missing() else "",
    )
