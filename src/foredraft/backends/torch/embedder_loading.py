"""Loading a folder of safetensors as an embedding model or a reranker: by transformers, and what the files of
sentence-transformers say of pooling, layers behind it, normalisation, prompts and lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from foredraft.backends.cpu import physical_cores
from foredraft.backends.rope import settle
from foredraft.backends.torch.embedder import TorchEmbedder
from foredraft.backends.torch.loading import (
    DTYPES,
    Source,
    check_size,
    choose_dtype,
    context_length_of,
    device_name,
    find_source,
    load_tokenizer,
    load_weights,
    place_on,
    trained_context,
    translated,
)
from foredraft.backends.torch.rotary import positions_in, set_positions
from foredraft.backends.torch.tokenizer import TorchTokenizer
from foredraft.config import ModelOptions
from foredraft.embedding import EmbedderTraits, ModelKind, Pooling
from foredraft.errors import ConfigError, ModelFormatError, UnsupportedModelError
from foredraft.library.fingerprint import fingerprint
from foredraft.library.kinds import kind_in_folder, modules_of, no_embedder
from foredraft.library.repository import CONFIG, WEIGHTS, read_json
from foredraft.types import ModelInfo

POOLING_MODES: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
"""The switches of sentence-transformers' `Pooling`; newer files have `pooling_mode` with the value."""

_ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "Identity": lambda rows: rows,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": torch.nn.functional.gelu,
    "Sigmoid": torch.sigmoid,
}

_AFTER_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})
"""Models whose positions begin after that of the padding, so that the first two are of no use."""

_POOLER = "pooler"
"""Part of the names of a layer that no vector here goes through, and that some files lack."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What follows the transformer."""

    pooling: Pooling = "mean"
    normalized: bool = False
    rest: Sequence[Callable[[Any], Any]] = ()
    dimensions: int = 0


def load_embedder(path: Path, options: ModelOptions, pooling: Pooling | None) -> TorchEmbedder:
    """Load a folder, or the folder of a file. `pooling` replaces what its files say. Raises ModelError,
    CapacityError, ConfigError, BackendError, MissingDependencyError.
    """
    source = find_source(path)
    kind = _kind(source, pooling)
    torch.set_num_threads(options.threads or physical_cores())
    device, _ = place_on(options, None)
    with translated(path):
        config = AutoConfig.from_pretrained(source.folder, **source.keywords())
        dtype = choose_dtype(config, device) if options.dtype == "auto" else options.dtype
        auto = AutoModelForSequenceClassification if kind == "reranker" else AutoModel
        if kind == "reranker" and config.num_labels != 1:
            raise UnsupportedModelError(
                f"{source.name} sorts texts into {config.num_labels} classes, and scores none.",
                hint="Use a reranker: a model with one label.",
            )
        positions = settle(path.name, positions_in(config), options.rope, options.context_length)
        set_positions(config, positions)
        check_size(source, path, config, auto)
        tokenizer = load_tokenizer(source, path)
        unused = None if kind == "reranker" else _POOLER
        weights = load_weights(source, path, config, DTYPES[dtype], auto=auto, unused=unused).to(device)
        parts = _parts(source.folder, pooling, device) if kind == "embedding" else _Parts()
    most = min(context_length_of(config, positions, options), _longest(source.folder, config, tokenizer))
    traits = _traits(source.folder, kind, parts, config, most, exact=device.type == "cpu")
    own = TorchTokenizer(tokenizer, weights.get_input_embeddings().weight.shape[0])
    info = _info(source, weights, own, traits, dtype=dtype, device=device)
    segmented = "token_type_ids" in tokenizer.model_input_names and getattr(config, "type_vocab_size", 0) > 1
    if options.progress is not None:
        options.progress(1.0)
    return TorchEmbedder(weights, own, info, traits, device=device, segmented=segmented, rest=parts.rest)


def _kind(source: Source, pooling: Pooling | None) -> ModelKind:
    kind = kind_in_folder(source.folder)
    if kind == "reranker" and pooling is not None:
        raise ConfigError(
            f'{source.name} is a reranker: embeddings = "{pooling}" cannot be set for it.',
            hint="Remove it.",
            setting="embeddings",
        )
    if kind == "generative" and pooling is None:
        raise no_embedder(source.name)
    return "reranker" if kind == "reranker" else "embedding"


def _parts(folder: Path, pooling: Pooling | None, device: Any) -> _Parts:
    """What follows the transformer, as modules.json says; without one the mean, and normalisation. Raises
    UnsupportedModelError for a part that is not known here.
    """
    found, normalized, dimensions = pooling, False, 0
    rest: list[Callable[[Any], Any]] = []
    modules = modules_of(folder)
    for kind, part in modules:
        if kind == "Pooling":
            found = pooling or _pooling_of(read_json(part / CONFIG), folder)
        elif kind == "Dense":
            config = read_json(part / CONFIG)
            rest.append(_dense(part, config, device))
            dimensions = int(config["out_features"])
        elif kind == "Normalize":
            normalized = True
        elif kind != "Transformer":
            raise UnsupportedModelError(
                f"{folder.name} has a part that is not supported: {kind}.",
                hint="Use another embedding model.",
            )
    return _Parts(found or "mean", normalized or not modules, rest, dimensions)


def _pooling_of(config: Mapping[str, Any], folder: Path) -> Pooling:
    """Raises UnsupportedModelError for one that is not known here."""
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else mode if isinstance(mode, list) else []
    modes += [
        POOLING_MODES.get(key, key.removeprefix("pooling_mode_"))
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value
    ]
    names = {"lasttoken": "last", "mean_tokens": "mean", "cls_token": "cls"}
    plain = [names.get(mode, mode) for mode in modes]
    for known in POOLING_MODES.values():
        if plain == [known] and config.get("include_prompt", True):
            return known
    what = " and ".join(map(str, plain)) or "nothing"
    without = "" if config.get("include_prompt", True) else " without the prompt"
    raise UnsupportedModelError(
        f"{folder.name} pools by {what}{without}, which is not supported.",
        hint='Set embeddings = "mean", "cls" or "last" if one of them will do.',
    )


def _dense(folder: Path, config: Mapping[str, Any], device: Any) -> Callable[[Any], Any]:
    """A layer behind the pooling. Raises ModelFormatError, UnsupportedModelError."""
    name = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(f"{folder} has an activation that is not supported: {name}.")
    if not (folder / WEIGHTS).is_file():
        raise ModelFormatError(f"There is no file {folder / WEIGHTS}.", hint="Pull the repository again.")
    tensors = {key: value.float().to(device) for key, value in load_file(folder / WEIGHTS).items()}
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None:
        raise ModelFormatError(f"{folder / WEIGHTS} has no linear.weight.", hint="Pull the repository again.")
    activation = _ACTIVATIONS[name]
    return lambda rows: activation(torch.nn.functional.linear(rows, weight, bias))


def _longest(folder: Path, config: Any, tokenizer: Any) -> int:
    """The most tokens of a text that the model's files allow."""
    found = [int(tokenizer.model_max_length)]
    trained = trained_context(config)
    if config.model_type in _AFTER_PADDING and trained:
        found.append(trained - 2)
    file = folder / "sentence_bert_config.json"
    stated = read_json(file).get("max_seq_length") if file.is_file() else None
    if isinstance(stated, int):
        found.append(stated)
    return max(1, min(found))


def _traits(
    folder: Path, kind: ModelKind, parts: _Parts, config: Any, most: int, *, exact: bool
) -> EmbedderTraits:
    if kind == "reranker":
        said = getattr(config, "sentence_transformers", None)
        stated = said.get("activation_fn") if isinstance(said, dict) else None
        stated = stated or getattr(config, "sbert_ce_default_activation_function", None)
        return EmbedderTraits(
            kind=kind,
            dimensions=1,
            most_tokens=most,
            pooling="rank",
            normalized=False,
            scores="identity" if str(stated).endswith("Identity") else "logit",
            exact=exact,
        )
    file = folder / "config_sentence_transformers.json"
    said = read_json(file) if file.is_file() else {}
    prompts = said.get("prompts")
    return EmbedderTraits(
        kind=kind,
        dimensions=parts.dimensions or int(config.get_text_config().hidden_size),
        most_tokens=most,
        pooling=parts.pooling,
        normalized=parts.normalized,
        prompts={str(name): str(text) for name, text in prompts.items()} if isinstance(prompts, dict) else {},
        default_prompt=str(said.get("default_prompt_name") or ""),
        exact=exact,
    )


def _info(
    source: Source,
    weights: Any,
    tokenizer: TorchTokenizer,
    traits: EmbedderTraits,
    *,
    dtype: str,
    device: Any,
) -> ModelInfo:
    config = weights.config
    return ModelInfo(
        name=source.name,
        path=str(source.folder),
        architecture=config.model_type,
        file_hash=fingerprint(source.files()),
        vocab_size=tokenizer.vocab_size,
        vocab_hash=tokenizer.hash(),
        context_length=traits.most_tokens,
        trained_context=trained_context(config) or traits.most_tokens,
        parameters=sum(parameter.numel() for parameter in weights.parameters()),
        size_bytes=sum(file.stat().st_size for file in source.files()),
        backend=f"torch {torch.__version__} (transformers {transformers.__version__})",
        device=device_name(device),
        quantization=dtype,
        settings={
            "format": dtype,
            "threads": str(torch.get_num_threads()),
            "pooling": traits.pooling,
            "dimensions": str(traits.dimensions),
        },
    )
