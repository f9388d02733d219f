"""Loading a folder as a ready model: number format, device, weights, and clear errors."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
)

from foredraft import installation
from foredraft.backends.comparison import Effort
from foredraft.backends.context_size import Chosen
from foredraft.backends.cpu import physical_cores
from foredraft.backends.probe import Verdict, measure, with_adapters_measured, with_measured
from foredraft.backends.rope import Positions, settle
from foredraft.backends.torch.adapters import Adapters, load_adapters
from foredraft.backends.torch.attention import cells_dtype
from foredraft.backends.torch.cached import OwnCaches
from foredraft.backends.torch.check import AS_GGUF
from foredraft.backends.torch.context_memory import context_for
from foredraft.backends.torch.forwards import Computation, choose_forward
from foredraft.backends.torch.fp8 import check_blocks
from foredraft.backends.torch.lean import is_lean
from foredraft.backends.torch.model import VERIFY_ROWS, TorchModel
from foredraft.backends.torch.offload import SETTINGS as OFFLOAD
from foredraft.backends.torch.offload import Accelerator, find_accelerator, lean_on
from foredraft.backends.torch.rotary import positions_in, set_positions, settle_rotary, short_context
from foredraft.backends.torch.seeing import SeeingModel
from foredraft.backends.torch.seeing_kinds import is_seeing
from foredraft.backends.torch.tokenizer import TorchTokenizer
from foredraft.backends.torch.vision import TorchVision, find_vision
from foredraft.config import DEFAULT_CONTEXT, Dtype, ModelOptions
from foredraft.cpu_info import this_processor
from foredraft.errors import (
    CapacityError,
    ConfigError,
    ForedraftError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
    first_line,
)
from foredraft.library.fingerprint import fingerprint
from foredraft.library.head_kinds import kind_of, no_model
from foredraft.library.kinds import kind_in_folder, only_embeds
from foredraft.library.recommended import recommended_in_folder
from foredraft.library.repository import CONFIG, cached_repository, read_json, weight_files
from foredraft.library.safetensors_file import read_safetensors
from foredraft.types import ModelInfo, Rollback

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST_PARAMETERS = 16
"""Tensor elements per byte of the files at most: no storage format has fewer than four bits."""

_EFFORT = Effort(3.0)
"""Of the exactness probe: eager forwards take longer than llama.cpp's, and every depth has to be computed."""

_PANIC = "PanicException"
"""The exception for a panic in a library written in Rust, such as tokenizers. It is not an Exception."""


@dataclass(frozen=True, slots=True)
class Source:
    """The location of a model: a folder, and the name of a GGUF file in it if the weights are one."""

    folder: Path
    gguf: str | None = None

    @property
    def name(self) -> str:
        """The name of the file or folder; of the repository if the folder is in the Hub's cache."""
        return self.gguf or cached_repository(self.folder) or self.folder.name

    def keywords(self) -> dict[str, Any]:
        """Arguments for transformers' `from_pretrained` in addition to the folder."""
        gguf = {"gguf_file": self.gguf} if self.gguf else {}
        return {"local_files_only": True, "trust_remote_code": False, **gguf}

    def files(self) -> list[Path]:
        """All files of the model."""
        if self.gguf:
            return [self.folder / self.gguf]
        return [self.folder / "config.json", *weight_files(self.folder)]


def load_model(path: Path, options: ModelOptions, accelerator: Accelerator | None = None) -> TorchModel:
    """Load a folder (or a file in it, or a GGUF). `options.dtype` "auto": see `choose_dtype`. `accelerator`
    replaces the machine's own.

    Raises ModelError, CapacityError, ConfigError, BackendError, MissingDependencyError.
    """
    if options.dtype not in {"auto", *DTYPES}:
        raise ConfigError(
            f"There is no number format {options.dtype!r}.", hint=f"Use auto, {', '.join(DTYPES)}."
        )
    source = find_source(path)
    threads = options.threads or physical_cores()
    torch.set_num_threads(threads)
    device, accelerator = place_on(options, accelerator)
    with translated(path):
        if not source.gguf and kind_of(read_json(source.folder / CONFIG)):
            raise no_model(source.folder)
        if not source.gguf and (kind := kind_in_folder(source.folder)) != "generative":
            raise only_embeds(source.name, kind)
        config = AutoConfig.from_pretrained(source.folder, **source.keywords())
        dtype = choose_dtype(config, device) if options.dtype == "auto" else options.dtype
        positions = settle(path.name, positions_in(config), options.rope, options.context_length)
        set_positions(config, positions)
        chosen = context_for(source.files(), config, positions, options, dtype=DTYPES[dtype], device=device)
        context_length, auto = chosen.length, _class_for(config)
        check_size(source, path, config, auto)
        tokenizer = load_tokenizer(source, path)
        weights = load_weights(source, path, config, DTYPES[dtype], auto=auto)
        settle_rotary(weights, context_length)
        if accelerator is None or options.adapters or not is_lean(weights, context_length):
            weights, accelerator = weights.to(device), None
        adapters = load_adapters(options.adapters, weights)
    if options.progress is not None:
        options.progress(1.0)
    model = _assemble(
        source,
        weights,
        tokenizer,
        options=options,
        device=device,
        accelerator=accelerator,
        adapters=adapters,
        positions=positions,
        context=chosen,
        dtype=dtype,
    )
    settings = {name: value for name, value in model.info.settings.items() if name not in OFFLOAD}
    # The kernels of torch's libraries and their summation order depend on the processor.
    key = f"{model.info.backend}|{model.info.device}|{this_processor()}|{sorted(settings.items())}"
    if model.durable:
        model.with_capabilities(snapshot_key=_snapshot_key(source, key, context_length))
    try:
        return _probed(model, key, options, adapters) if options.probe else model
    except BaseException:
        model.close()
        raise


def _probed(model: TorchModel, key: str, options: ModelOptions, adapters: Adapters | None) -> TorchModel:
    able = model.capabilities
    if able.rollback is Rollback.BOUNDED and not able.rollback_bound:  # it never drafts
        return model.with_capabilities(invariance_note="not measured: the model keeps a recurrent state")
    if "streamed" in model.info.settings:
        return _as_known(model, key, options)
    image = model.vision.blank() if isinstance(model, SeeingModel) and model.vision is not None else None
    if image is not None:
        key += "|behind an image"
    kinds = {"": key}
    for name in model.adapters if adapters is not None else ():
        kind = f"{key}|adapter {adapters.signature(name)}" if adapters else ""
        if kind not in kinds.values():
            kinds[name] = kind
    return with_adapters_measured(
        model,
        kinds,
        options,
        lambda: measure(model, options, enough=VERIFY_ROWS, effort=_EFFORT, image=image),
        otherwise=VERIFY_ROWS,
    )


def _as_known(model: TorchModel, key: str, options: ModelOptions) -> TorchModel:
    """The result measured with all layers on the device, which computes the same. Measuring takes about 40
    forwards: minutes if each of them copies most of a large model.
    """

    def too_slow() -> Verdict:
        raise _UnmeasuredError

    try:
        known = replace(options, probe=True, notice=None)
        return with_measured(model, key, known, too_slow, otherwise=VERIFY_ROWS, tries=1)
    except _UnmeasuredError:
        return model.with_capabilities(invariance_note="not measured: too slow with streamed layers")


class _UnmeasuredError(Exception):
    pass


def _snapshot_key(source: Source, settings_key: str, context_length: int) -> str:
    """Equal for two models only if both compute the same cells from the same tokens. `file_hash` is a sample,
    which may miss a small change of weights, so the files' times are included.
    """
    times = [file.stat().st_mtime_ns for file in source.files()]
    text = f"{fingerprint(source.files())}|{times}|{settings_key}|{context_length}"
    return hashlib.sha256(text.encode()).hexdigest()


def find_source(path: Path) -> Source:
    """The model at a path. Raises ModelFormatError, ModelNotFoundError."""
    if path.suffix.lower() == ".gguf":
        source = Source(path.parent, path.name)
    else:
        source = Source(path if path.is_dir() else path.parent)
    missing = [file for file in source.files() if not file.is_file()]
    if missing and (source.folder / "config.json").is_file():
        raise ModelFormatError(
            f"{path.name} is incomplete: there is no file {missing[0]}.", hint="Pull the repository again."
        )
    if missing:
        raise ModelNotFoundError(
            f"There is no file {missing[0]}.", hint="'foredraft models list' shows the models you have."
        )
    return source


def place_on(options: ModelOptions, given: Accelerator | None) -> tuple[Any, Accelerator | None]:
    """The device, and its interface for streaming layers if it has one."""
    device = torch.device("cpu")
    if options.gpu_layers != 0:
        if given is not None:
            return given.device, given
        if torch.cuda.is_available():
            device = torch.device("cuda")
        elif torch.backends.mps.is_available():
            device = torch.device("mps")
    return device, find_accelerator(device)


def choose_dtype(config: Any, device: Any) -> Dtype:
    """The weights' format on the device: the checkpoint's if the device supports it.

    A processor computes in bf16 if it has instructions for it (AVX512_BF16, AMX), else in fp32.
    """
    stored = getattr(config, "dtype", None)
    if device.type == "cpu":
        return "bf16" if stored == torch.bfloat16 and _processor_has_bf16() else "fp32"
    if stored == torch.bfloat16:
        return "fp16" if device.type == "cuda" and not torch.cuda.is_bf16_supported() else "bf16"
    return "fp16" if stored == torch.float16 else "fp32"


def _processor_has_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def context_length_of(config: Any, positions: Positions, options: ModelOptions) -> int:
    """Tokens of context for one forward over whole texts: no more than `DEFAULT_CONTEXT` if not asked for."""
    most = min(positions.reach or DEFAULT_CONTEXT, options.context_at_most, DEFAULT_CONTEXT)
    return options.context_length or min(short_context(config) or most, most)


def trained_context(config: Any) -> int:
    """Tokens of context that the model was trained for; 0 if its configuration does not say."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", 0) or getattr(text, "n_positions", 0) or 0)


def load_tokenizer(source: Source, path: Path) -> Any:
    """The repository's tokenizer. Raises ModelFormatError."""
    try:
        return AutoTokenizer.from_pretrained(source.folder, **source.keywords())
    except (OSError, ValueError) as error:
        raise ModelFormatError(
            f"transformers cannot read a tokenizer in {path.name} ({first_line(error)}).",
            hint="The repository needs a tokenizer.json, and some tokenizers need another package: "
            + installation.add("sentencepiece", "tiktoken"),
        ) from None


def check_size(source: Source, path: Path, config: Any, auto: Any = AutoModelForCausalLM) -> None:
    """Raises ModelFormatError if the configuration does not fit the size of the files: transformers would
    allocate all of it before it detects missing weights.
    """
    if source.gguf:
        return
    stored = read_safetensors(source.folder)
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0) or 0
    if layers > len(stored.tensors):
        raise _no_match(path, f"{layers:,} layers", f"{len(stored.tensors):,} tensors")
    with torch.device("meta"):  # allocates no memory
        model = auto.from_config(config, trust_remote_code=False)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS * stored.size_bytes:
        raise _no_match(path, f"{parameters:,} parameters", f"{stored.size_bytes:,} bytes")


def _no_match(path: Path, configured: str, stored: str) -> ModelFormatError:
    return ModelFormatError(
        f"The configuration of {path.name} describes {configured}, but its files contain {stored}.",
        hint="Files of two models may be mixed up, or files damaged: download the repository again.",
    )


def _class_for(config: Any) -> Any:
    """The class of transformers for all generative models of this kind."""
    return AutoModelForImageTextToText if is_seeing(config) else AutoModelForCausalLM


def load_weights(
    source: Source,
    path: Path,
    config: Any,
    dtype: Any,
    *,
    auto: Any = AutoModelForCausalLM,
    unused: str | None = None,
) -> Any:
    """The model, in this format, as a class of `auto`. Tensors with `unused` in their names may be missing.
    Raises ModelError.
    """
    stored = getattr(config, "quantization_config", None)
    if isinstance(stored, dict) and stored.get("quant_method") == "fp8":
        # As without a GPU: transformers' kernels for FP8 would round the activations, and our forwards
        # compute with the weights as they are.
        check_blocks(source.folder)
        config.quantization_config = {**stored, "dequantize": True}
    weights, report = auto.from_pretrained(
        source.folder,
        config=config,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # otherwise its error does not name the tensor
        **source.keywords(),
    )
    if mismatched := sorted(report["mismatched_keys"]):
        tensor, found, expected = mismatched[0]
        raise ModelFormatError(
            f"In {path.name} the tensor {tensor} has the shape {tuple(found)}, but the configuration needs "
            f"{tuple(expected)}.",
            hint="Files of two models may be mixed up: download the repository again.",
        )
    missing = sorted(name for name in report["missing_keys"] if unused is None or unused not in name)
    if missing:  # transformers fills them with random numbers
        raise ModelFormatError(
            f"{path.name} lacks {len(missing)} of the model's tensors, for example {missing[0]}.",
            hint="The repository may be incomplete: download it again.",
        )
    weights.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    return weights.eval()


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate transformers' errors, and suppress its output."""
    messages = transformers.utils.logging
    level, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    except ForedraftError:
        raise
    except ImportError as error:
        raise UnsupportedModelError(f"{path.name} needs another package: {first_line(error)}") from None
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"There is not enough memory to load {path.name} ({first_line(error)}).",
            hint="Use a smaller model, or --gpu-layers 0 to stay on the processor.",
        ) from None
    except (KeyError, ValueError) as error:
        raise UnsupportedModelError(
            f"transformers cannot run {path.name}: {first_line(error)}",
            hint="A newer version may: " + installation.add("--upgrade", "transformers"),
        ) from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise ModelFormatError(
            f"transformers cannot load {path.name}: {first_line(error)}",
            hint="A file may be damaged or missing: download the repository again.",
        ) from None
    finally:
        messages.set_verbosity(level)
        if bars:
            messages.enable_progress_bar()


def _assemble(
    source: Source,
    weights: Any,
    fast: Any,
    *,
    options: ModelOptions,
    device: Any,
    accelerator: Accelerator | None,
    adapters: Adapters | None,
    positions: Positions,
    context: Chosen,
    dtype: Dtype,
) -> TorchModel:
    config, context_length = weights.config, context.length
    head = weights.get_output_embeddings()
    if head is None:
        raise UnsupportedModelError(
            f"{type(weights).__name__} has no output layer for the next token.", hint=AS_GGUF
        )
    tokenizer = TorchTokenizer(fast, int(head.weight.shape[0]), _ends(config, weights.generation_config))
    parameters = sum(parameter.numel() for parameter in weights.parameters())  # before any is dropped
    where = {"name": source.name, "context_length": context_length, "dtype": DTYPES[dtype]}
    computation = _computation(weights, options, device, accelerator, adapters, **where)
    vision = _vision(computation, weights, tokenizer, source, context_length)
    info = ModelInfo(
        name=source.name,
        path=str(source.folder / source.gguf if source.gguf else source.folder),
        architecture=config.model_type,
        file_hash=fingerprint(source.files()),
        vocab_size=tokenizer.vocab_size,
        vocab_hash=tokenizer.hash(),
        context_length=context_length,
        trained_context=positions.reach or context_length,
        context_chosen=context.why,
        parameters=parameters,
        size_bytes=sum(file.stat().st_size for file in source.files()),
        backend=f"torch {torch.__version__} (transformers {transformers.__version__})",
        device=device_name(device),
        quantization=dtype,
        settings=_settings(computation, options, dtype, device, positions),
        recommended=recommended_in_folder(source.folder),
        memory={} if adapters is None else {"adapters": adapters.bytes},
        scalable=positions.scalable,
        notes=positions.notes,
    )
    return _made(computation, tokenizer, info, vision, options=options, device=device, adapters=adapters)


def _made(
    computation: Computation,
    tokenizer: TorchTokenizer,
    info: ModelInfo,
    vision: TorchVision | None,
    *,
    options: ModelOptions,
    device: Any,
    adapters: Adapters | None,
) -> TorchModel:
    """The model that computes so, and sees if it has a `vision`."""
    model = computation.model(
        computation.forward,
        computation.cells,
        tokenizer,
        info,
        device=device,
        max_batch=max(options.batch, options.sequences),
        rollback=computation.rollback,
        trees=computation.trees,
        watch=options.watch,
        trunk=computation.trunk,
        adapters=adapters,
    )
    if isinstance(model, SeeingModel) and vision is not None:
        model.see(vision)
    return model


def _computation(
    weights: Any,
    options: ModelOptions,
    device: Any,
    accelerator: Accelerator | None,
    adapters: Adapters | None,
    **where: Any,
) -> Computation:
    """The model's forward and cache, which take its weights over; streamed where there is an accelerator."""
    if accelerator is not None:
        return lean_on(accelerator, weights, options, **where)
    return choose_forward(
        weights,
        sequences=options.sequences,
        device=device,
        watch=options.watch,
        adapters=adapters,
        **where,
    )


def _vision(
    computation: Computation, weights: Any, tokenizer: TorchTokenizer, source: Source, context_length: int
) -> TorchVision | None:
    """How the model sees, noted among the computation's settings; None if it does not."""
    if not issubclass(computation.model, SeeingModel):
        return None
    found = find_vision(weights, tokenizer, source.folder, context=context_length)
    computation.settings["vision"] = found if isinstance(found, str) else "images"
    return None if isinstance(found, str) else found


def _settings(
    computation: Computation, options: ModelOptions, dtype: Dtype, device: Any, positions: Positions
) -> dict[str, str]:
    return {
        "format": dtype,
        "kv_type": _cells_format(computation, dtype, device),
        **({} if device.type == "cpu" else {"gpu_layers": "all"}),
        **computation.settings,
        **({"watch": ", ".join(options.watch)} if options.watch else {}),
        **({"positions": str(positions)} if str(positions) else {}),
        "threads": str(torch.get_num_threads()),
        "sequences": str(options.sequences),
        "batch": str(max(options.batch, options.sequences)),
    }


def _cells_format(computation: Computation, dtype: Dtype, device: Any) -> str:
    """The number format of its KV cells, with its name in `DTYPES`."""
    if isinstance(computation.cells, OwnCaches):
        return dtype
    held = cells_dtype(DTYPES[dtype], device)
    return next(name for name, format_ in DTYPES.items() if format_ == held)


def _ends(config: Any, generation: GenerationConfig | None) -> list[int]:
    """The token ids at which transformers would stop."""
    found: list[int] = []
    for place in (config, generation):
        ends = getattr(place, "eos_token_id", None)
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return found


def device_name(device: Any) -> str:
    """The name by which users know a device."""
    if device.type == "cpu":
        return "cpu"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device.type)
