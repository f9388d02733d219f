"""Opening a head beside its loaded target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.backends.llamacpp import abi, features, loading, log, trial
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.gguf_file import GGUFSummary, read_gguf
from foredraft.backends.llamacpp.heads.dflash import DFlashHead
from foredraft.backends.llamacpp.heads.dflash_file import DFlashFile
from foredraft.backends.llamacpp.heads.eagle3 import ROWS, Eagle3Head
from foredraft.backends.llamacpp.heads.eagle3_file import Eagle3File
from foredraft.backends.llamacpp.heads.head_file import HeadFile, read_head
from foredraft.backends.llamacpp.heads.mtp import ChainedHead, MtpHead
from foredraft.backends.llamacpp.heads.native import NativeHead, Opened
from foredraft.backends.llamacpp.tokenizer import vocabulary_hash
from foredraft.backends.rope import Positions
from foredraft.config import ModelOptions
from foredraft.errors import CapacityError, UnsupportedModelError
from foredraft.library.fingerprint import fingerprint_of
from foredraft.types import ModelInfo

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.model import LlamaCppModel

CELLS = 256
"""Cells of a head whose rows see only themselves: the fewest that llama.cpp makes."""

MOST_ROWS = 64
"""Rows of a head that are computed at once. Memory is reserved for the logits of all of them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded model, with llama.cpp's weights and context of it."""

    model: LlamaCppModel
    weights: Any
    context: Any

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    def check_watched(self, needs: tuple[str, ...], name: str) -> None:
        """Raises UnsupportedModelError if it was loaded without what a head reads."""
        missing = [need for need in needs if need not in self.model.capabilities.features]
        if missing:
            raise UnsupportedModelError(
                f"{self.info.name} was loaded without what {name} reads ({', '.join(missing)}).",
                hint="Name the head when the model is loaded.",
            )


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens heads of a target, with its file and how it was loaded. `in_trial`: a child process tries it."""

    path: Path
    options: ModelOptions
    settings: loading.ContextSettings
    in_trial: bool

    def open(self, target: Target, head: Path | None, sequences: int) -> NativeHead:
        """Raises what `Model.load_head` does."""
        most = target.model.capabilities.sequences
        if not 1 <= sequences <= most:
            raise CapacityError(f"A head for {sequences} sequences does not fit a model with {most}.")
        if head is None:
            return self._open_own_layers(target, sequences)
        return self._open_file(target, head, sequences)

    def _open_own_layers(self, target: Target, sequences: int) -> NativeHead:
        summary = read_gguf(self.path)
        layers = features.next_layers(summary)
        if not layers:
            raise UnsupportedModelError(
                f"{self.path.name} has no layers for multi-token prediction that can be used.",
                hint="Name the file of a head, or use drafters that need none.",
            )
        needs = (features.NEXT,)
        target.check_watched(needs, "its head")
        if not self.in_trial:
            trial.admit_head(summary, None, self.options)

        def adjust(params: Any) -> None:
            params.ctx_type = abi.llama_context_type.LLAMA_CONTEXT_TYPE_MTP
            params.ctx_other = target.context

        info = replace(target.info, name=f"{target.info.name} (its own layers)", recommended={})
        settings = self._settings(sequences, max(MOST_ROWS, sequences), self.settings.context_length)
        opened = self._opened(target, target.weights, settings, info, adjust)
        size = target.model.capabilities.feature_size

        def make() -> NativeHead:
            if layers > 1:
                return ChainedHead(opened, needs, size=size, state=size, sequences=sequences, layers=layers)
            return MtpHead(opened, needs, size=size, state=size, sequences=sequences)

        return _made(opened, make)

    def _open_file(self, target: Target, path: Path, sequences: int) -> NativeHead:
        summary = read_gguf(self.path)
        file = read_head(path, summary)
        target.check_watched(file.needs, path.name)
        if not self.in_trial:
            trial.admit_head(summary, file.summary, self.options)
        options = replace(self.options, watch=(), progress=None)
        weights, lines = loading.load_weights(file.summary.path, options, as_they_lie=self.in_trial)
        alone = isinstance(file, Eagle3File) and file.window == 1

        def adjust(params: Any) -> None:
            params.ctx_other = target.context
            if alone:
                params.kv_unified, params.n_ctx = True, CELLS

        try:
            _check_vocabulary(target.info, weights, path)
            info = replace(_info_of(file.summary, weights, target.info), memory=log.buffer_sizes(lines))
            opened = self._opened(target, weights, self._settings_for(file, sequences), info, adjust)
        except BaseException:
            lib.llama_model_free(weights)
            raise
        size = target.model.capabilities.feature_size

        def make() -> NativeHead:
            if isinstance(file, DFlashFile):
                return DFlashHead(opened, file, size=size, sequences=sequences)
            return Eagle3Head(
                opened, file.needs, size=size, state=file.state, sequences=sequences, window=file.window
            )

        return _made(opened, make)

    def _settings_for(self, file: HeadFile, sequences: int) -> loading.ContextSettings:
        """Of a head in a file of its own, whose positions are as it was trained with them."""
        settings = self._settings_of_size(file, sequences)
        return replace(settings, positions=Positions())

    def _settings_of_size(self, file: HeadFile, sequences: int) -> loading.ContextSettings:
        rows, length = max(MOST_ROWS, sequences), self.settings.context_length
        if isinstance(file, DFlashFile):  # a block goes beyond the text
            return self._settings(sequences, rows, length + file.block + 1)
        if file.window == 1:
            return self._settings(ROWS, ROWS, 1)
        return self._settings(sequences, rows, length)

    def _settings(self, sequences: int, rows: int, context_length: int) -> loading.ContextSettings:
        return replace(
            self.settings,
            sequences=sequences,
            batch=rows,
            ubatch=rows,
            context_length=context_length,
            kept_states=0,
            watch=(),
        )

    def _opened(
        self,
        target: Target,
        weights: Any,
        settings: loading.ContextSettings,
        info: ModelInfo,
        adjust: Callable[[Any], None],
    ) -> Opened:
        """A context of weights, which are freed with it if they are not the target's."""
        fallback = self.options.kv_type == "auto"
        context, settings = loading.create_context(weights, settings, fallback=fallback, adjust=adjust)
        info = replace(
            info,
            settings={"kv_type": "/".join(settings.kv_types)},
            memory={**info.memory, **settings.memory},
        )
        own = None if weights is target.weights else weights
        return Opened(context, own, info, target.model.threads, target.model.forget_head)


def _info_of(summary: GGUFSummary, weights: Any, target: ModelInfo) -> ModelInfo:
    return replace(
        target,
        name=summary.name,
        path=str(summary.path),
        architecture=summary.architecture,
        file_hash=fingerprint_of(summary.path),
        trained_context=int(lib.llama_model_n_ctx_train(weights)),
        parameters=int(lib.llama_model_n_params(weights)),
        size_bytes=int(lib.llama_model_size(weights)),
        quantization=(lib.llama_ftype_name(lib.llama_model_ftype(weights)) or b"").decode(),
        recommended={},
    )


def _made(opened: Opened, make: Callable[[], NativeHead]) -> NativeHead:
    try:
        return make()
    except BaseException:
        opened.free()
        raise


def _check_vocabulary(target: ModelInfo, weights: Any, path: Path) -> None:
    if vocabulary_hash(lib.llama_model_get_vocab(weights)) != target.vocab_hash:
        raise UnsupportedModelError(
            f"{path.name} is a head of another model: its tokens are not those of {target.name}.",
            hint="Use a head that was trained for this model.",
        )
