"""Models of transformers (safetensors) through PyTorch. Importing this package imports neither library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foredraft.backends.torch.head_files import features_for
from foredraft.config import ModelOptions
from foredraft.embedding import Embedder, ModelKind, Pooling
from foredraft.errors import ConfigError
from foredraft.library.kinds import kind_in_folder
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

    def kind(self, path: Path, options: ModelOptions | None = None) -> ModelKind:  # noqa: ARG002
        """See `Backend.kind`. Raises ModelError."""
        folder = repository_of(path)
        return "generative" if folder is None else kind_in_folder(folder)

    def load(self, path: Path, options: ModelOptions) -> Model:
        """Raises ModelError, CapacityError, MissingDependencyError, BackendError.

        Also loads a GGUF file, which transformers converts to full-size weights (it needs the package
        `gguf`).
        """
        if options.rpc:
            raise ConfigError("Only GGUF files can be split over machines.", hint="Leave --rpc out.")
        with _installed(path):
            from foredraft.backends.torch.loading import load_model
            from foredraft.backends.torch.recurrent import rewinding
        return rewinding(load_model(path, options))

    def load_embedder(self, path: Path, options: ModelOptions, pooling: Pooling | None) -> Embedder:
        """See `Backend.load_embedder`."""
        with _installed(path):
            from foredraft.backends.torch.embedder_loading import load_embedder
        return load_embedder(path, options, pooling)


@contextmanager
def _installed(path: Path) -> Iterator[None]:
    """Raises MissingDependencyError where torch or transformers is imported and not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise missing_dependency(error.name, f"Loading {path.name}") from None


BACKEND = TorchBackend()
