"""GGUF models through llama.cpp's C API. Importing this package does not load llama.cpp."""

from __future__ import annotations

from pathlib import Path

from foredraft.backends.llamacpp import binding
from foredraft.config import ModelOptions
from foredraft.embedding import Embedder, ModelKind, Pooling
from foredraft.errors import ConfigError
from foredraft.protocols import Model

MAGIC = b"GGUF"


class LlamaCppBackend:
    """The `llamacpp` backend: accepts GGUF files."""

    name = "llamacpp"

    def accepts(self, path: Path) -> bool:
        """Whether the file is a GGUF or starts like one (so that a damaged one gets this backend's error)."""
        if path.suffix.lower() == ".gguf":
            return True
        try:
            with path.open("rb") as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError:
            return False

    def features_for(
        self, path: Path, head: Path | None, options: ModelOptions | None = None
    ) -> tuple[str, ...]:
        """See `Backend.features_for`. Raises ConfigError, ModelError, MissingDependencyError."""
        if options is not None:
            binding.choose(options.llama_library)  # before a header is read with another
        from foredraft.backends.llamacpp import features
        from foredraft.backends.llamacpp.gguf_file import read_gguf
        from foredraft.backends.llamacpp.heads.head_file import read_head

        target = read_gguf(path)
        if head is None:
            return (features.NEXT,) if features.next_layers(target) else ()
        return read_head(head, target).needs

    def weights_hash(self, path: Path, options: ModelOptions | None = None) -> str:
        """See `Backend.weights_hash`. Raises ConfigError, ModelError, MissingDependencyError."""
        if options is not None:
            binding.choose(options.llama_library)
        from foredraft.backends.llamacpp.gguf_file import read_gguf
        from foredraft.backends.llamacpp.weights_hash import weights_hash

        return weights_hash(read_gguf(path))

    def kind(self, path: Path, options: ModelOptions | None = None) -> ModelKind:
        """See `Backend.kind`. Raises ConfigError, ModelError, MissingDependencyError."""
        if options is not None:
            binding.choose(options.llama_library)
        from foredraft.backends.llamacpp.gguf_file import read_gguf
        from foredraft.library.kinds import kind_in_gguf

        summary = read_gguf(path)
        return kind_in_gguf(summary.architecture, summary.metadata)

    def load(self, path: Path, options: ModelOptions) -> Model:
        """Raises ConfigError, ModelError, CapacityError, MissingDependencyError, BackendError."""
        _check_dtype(options)
        binding.choose(options.llama_library)
        from foredraft.backends.llamacpp.loading import load_model

        return load_model(path, options)

    def load_embedder(self, path: Path, options: ModelOptions, pooling: Pooling | None) -> Embedder:
        """See `Backend.load_embedder`."""
        _check_dtype(options)
        binding.choose(options.llama_library)
        from foredraft.backends.llamacpp.embedder_loading import load_embedder

        return load_embedder(path, options, pooling)


def _check_dtype(options: ModelOptions) -> None:
    if options.dtype != "auto":
        raise ConfigError(
            f"dtype={options.dtype!r} only applies to safetensors; a GGUF file has its own format.",
            hint="Remove it. 'foredraft models quantize' writes a GGUF in another format.",
        )


BACKEND = LlamaCppBackend()
