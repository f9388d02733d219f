"""PyTorch's part of `foredraft doctor`: the device and number formats that the backend would use."""

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
    """The installed PyTorch. `device` is the device for models; `formats` maps stored number formats to the
    ones they are computed in; `bf16`: whether the processor has bf16 instructions; `onednn`: whether products
    are computed by oneDNN with packed weights, whose results do not depend on the number of rows; `fbgemm`:
    whether weights that fit fp16 are stored in it.
    """

    version: str
    transformers: str
    device: str
    formats: dict[str, str]
    bf16: bool
    onednn: bool
    fbgemm: bool = False


def torch_facts() -> PyTorch:
    """Query the backend. Raises MissingDependencyError, or BackendError if PyTorch cannot be imported."""
    try:
        from foredraft.backends.torch import half, loading
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise missing_dependency(error.name, "Running safetensors") from None
    except (ImportError, OSError, RuntimeError) as error:
        if str(getattr(error, "name", "")).startswith("foredraft"):  # an error of our own
            raise
        raise BackendError(
            f"PyTorch is installed but cannot be imported: {error}.",
            hint="Reinstall it: " + installation.add("--force-reinstall", "torch", "transformers"),
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
