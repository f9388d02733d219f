"""Models of transformers (safetensors) through PyTorch. Importing this package imports neither library."""

from __future__ import annotations

from pathlib import Path

from foredraft.backends.torch.head_files import features_for
from foredraft.config import ModelOptions
from foredraft.library.repository import repository_of
from foredraft.protocols import Model
from foredraft.registry import missing_dependency


class TorchBackend:
    """The `torch` backend: accepts a folder in the form of the Hugging Face Hub, or a file in one."""

    name = "torch"

    def accepts(self, path: Path) -> bool:
        """Whether the path is, or is in, a folder with a configuration and safetensors."""
        return repository_of(path) is not None

    def features_for(
        self,
        path: Path,
        head: Path | None,
        options: ModelOptions | None = None,  # noqa: ARG002
    ) -> tuple[str, ...]:
        """See `Backend.features_for`. Raises ModelError."""
        return features_for(path, head)

    def weights_hash(self, path: Path, options: ModelOptions | None = None) -> str:  # noqa: ARG002
        """See `Backend.weights_hash`: for safetensors it cannot be told."""
        return ""

    def load(self, path: Path, options: ModelOptions) -> Model:
        """Raises ModelError, CapacityError, MissingDependencyError, BackendError.

        Also loads a GGUF file, which transformers converts to full-size weights (it needs the package
        `gguf`).
        """
        try:
            from foredraft.backends.torch.loading import load_model
            from foredraft.backends.torch.recurrent import rewinding
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "transformers"):
                raise
            raise missing_dependency(error.name, f"Loading {path.name}") from None
        return rewinding(load_model(path, options))


BACKEND = TorchBackend()
