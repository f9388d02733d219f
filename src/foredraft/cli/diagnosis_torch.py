"""What `foredraft doctor` finds out about PyTorch: what the backend would compute with here, and how."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace

from foredraft import installation
from foredraft.config import ModelOptions
from foredraft.errors import BackendError
from foredraft.registry import missing_dependency


@dataclass(frozen=True, slots=True)
class PyTorch:
    """The installed PyTorch. `device` is where models are put; `formats` says for weights stored in a format
    in which one they are computed there; `bf16` is whether the processor has instructions for that format,
    `onednn` whether its products are oneDNN's over weights laid out beforehand, which do not depend on how
    many rows there are, `fbgemm` whether weights that fit fp16 are held in it.
    """

    version: str
    transformers: str
    device: str
    formats: dict[str, str]
    bf16: bool
    onednn: bool
    fbgemm: bool = False


def torch_facts() -> PyTorch:
    """Ask the backend itself. Raises MissingDependencyError, or BackendError if PyTorch does not load."""
    try:
        from foredraft.backends.torch import half, loading
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise missing_dependency(error.name, "Running safetensors") from None
    except (ImportError, OSError, RuntimeError) as error:
        if str(getattr(error, "name", "")).startswith("foredraft"):  # a mistake of ours
            raise
        raise BackendError(
            f"PyTorch is installed, but does not load: {error}.",
            hint="Install it again: " + installation.add("--force-reinstall", "torch", "transformers"),
        ) from error
    device = loading.place_on(ModelOptions(), None)[0]
    processor = loading.place_on(ModelOptions(gpu_layers=0), None)[0]
    stored = {name: SimpleNamespace(dtype=dtype) for name, dtype in loading.DTYPES.items()}
    formats = {name: loading.choose_dtype(config, device) for name, config in stored.items()}
    computed = loading.choose_dtype(stored["bf16"], processor)
    products = half.choose_products(loading.DTYPES[computed], processor)
    return PyTorch(
        version=version("torch"),
        transformers=version("transformers"),
        device=loading.device_name(device),
        formats={name: str(chosen) for name, chosen in formats.items()},
        bf16=computed == "bf16",
        onednn=products.copies,
        fbgemm=products.halves,
    )
