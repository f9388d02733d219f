"""A model on this computer as a value, and the information in its file names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from foredraft.errors import ModelFormatError
from foredraft.library.regular import size_of_file
from foredraft.library.repository import CONFIG, SAFETENSORS, SUFFIX, folder_name, read_json, weight_files
from foredraft.library.split import is_later_part, model_files, split_stem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Source: TypeAlias = Literal["bundled", "local", "pulled", "ollama", "lmstudio", "huggingface", "llamacpp"]
Format: TypeAlias = Literal["gguf", "safetensors"]

OWN: frozenset[Source] = frozenset({"bundled", "local", "pulled"})
"""Sources of models in Foredraft's folder; all others belong to other programs."""

_QUANTIZATION = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?|NVFP4))$",
    re.IGNORECASE,
)
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_NO_MODEL = re.compile(r"(?:^|[-_.])(?:mmproj|imatrix)(?:[-_.]|$)", re.IGNORECASE)

_HEAD = re.compile(r"[-_.](?:(?:eagle-?3|dflash|dspark)(?=[-_.]|$)|head$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this computer. `path` is its file, the first file of a split model, or its folder of
    safetensors.

    `repository` is where it was pulled from ("owner/name"), else empty; `quantization` is from its file name,
    or from the configuration of safetensors ("BF16"), and may be empty; `size_bytes` is the total of all
    files with weights; `complete`: whether all files exist. `label` is the program's name for a model whose
    file names are meaningless ("llama3.2:3b" in Ollama).
    """

    path: Path
    source: Source
    repository: str
    format: Format
    quantization: str
    size_bytes: int
    complete: bool
    label: str = ""

    @property
    def stem(self) -> str:
        """Its label; the file's name without extension and part number; or the folder's name."""
        if self.label:
            return self.label
        return folder_name(self.path) if self.format == SAFETENSORS else split_stem(self.path.stem)

    @property
    def name(self) -> str:
        """The shortest unique name: `owner/name:QUANT` if pulled, else the stem."""
        if not self.repository:
            return self.stem
        return f"{self.repository}:{self._variant or self.path.name}"

    @property
    def _variant(self) -> str:
        """The part after the colon in its name."""
        return SAFETENSORS if self.format == SAFETENSORS else self.quantization

    def answers_to(self) -> tuple[str, ...]:
        """All names by which it can be called."""
        is_file = self.format != SAFETENSORS
        names = [self.stem, self.path.name, self.label.removesuffix(":latest") or self.stem]
        if self.repository:
            short = self.repository.rpartition("/")[2]
            names += [f"{self.repository}/{self.path.name}"] if is_file else []
            for repository in (self.repository, short):
                names += [repository]
                names += [f"{repository}:{self.path.name}", f"{repository}:{self.stem}"] if is_file else []
                names += [f"{repository}:{self._variant}"] if self._variant else []
        return tuple(dict.fromkeys(names))


def describe_gguf(path: Path, source: Source, repository: str = "") -> StoredModel:
    """The model in a GGUF file, or the first part of a split one. No weights are opened."""
    files = model_files(path)
    sizes = [size for file in files if (size := size_of_file(file)) is not None]
    return StoredModel(
        path=path,
        source=source,
        repository=repository,
        format="gguf",
        quantization=quantization_of(path.stem),
        size_bytes=sum(sizes),
        complete=len(sizes) == len(files),
    )


def describe_folder(path: Path, source: Source, repository: str = "") -> StoredModel:
    """The model in a folder of safetensors. Only its configuration and index are read."""
    damaged, config, files = False, dict[str, Any](), tuple(sorted(path.glob(f"*{SUFFIX}")))
    try:
        files = weight_files(path)
        config = read_json(path / CONFIG)
    except (ModelFormatError, OSError):
        damaged = True
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    sizes = [size for file in files if (size := size_of_file(file)) is not None]
    return StoredModel(
        path=path,
        source=source,
        repository=repository,
        format="safetensors",
        quantization=_DTYPES.get(dtype, dtype),
        size_bytes=sum(sizes),
        complete=not damaged and len(sizes) == len(files),
    )


def gguf_models(paths: Iterable[Path]) -> list[Path]:
    """The paths that are models: GGUF by name, only the first part of split ones, without vision projectors,
    importance matrices and heads.
    """
    return [
        path
        for path in paths
        if is_model_name(path.name) and not is_later_part(path.stem) and not is_head_name(path.name)
    ]


def is_model_name(name: str) -> bool:
    """Whether a file of this name should be a model, or a part of one."""
    return name.lower().endswith(".gguf") and not _NO_MODEL.search(name[: -len(".gguf")])


def is_head_name(name: str) -> bool:
    """Whether a file or folder of this name should be a head of a model (`library.heads`)."""
    return _HEAD.search(split_stem(name.removesuffix(".gguf"))) is not None


def quantization_of(stem: str) -> str:
    """The quantisation in a file's stem, in upper case ("Q4_K_M"), or an empty text."""
    match = _QUANTIZATION.search(split_stem(stem))
    return match[1].upper() if match else ""
