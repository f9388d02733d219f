"""From a model to a head for it, in stages: answers, features, vocabulary, training, file.

Each stage goes on where an earlier run left it (`workfolder`). An interruption is an exception that passes
through; nothing needs to be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from pickle import UnpicklingError
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp.features import check, layer
from foredraft.backends.llamacpp.gguf_file import GGUFSummary, is_gguf, read_gguf
from foredraft.draft.make import prompts
from foredraft.draft.make.answers import Answer, AnswerFile, answers_to
from foredraft.draft.make.features import read_rows
from foredraft.draft.make.parts import Part
from foredraft.draft.make.sizes import (
    Sizes,
    choose_vocabulary,
    count_tokens,
    layers_for,
    most_tokens,
    sizes_for,
)
from foredraft.draft.make.store import Examples, RowStore
from foredraft.draft.make.weights import gguf_package, target_parts
from foredraft.draft.make.workfolder import WorkFolder
from foredraft.draft.make.write import FORMATS, HeadFacts, rounded, write_gguf, write_safetensors
from foredraft.engine.engine import Engine
from foredraft.engine.options import EngineOptions, model_options
from foredraft.errors import ConfigError, UnsupportedModelError
from foredraft.library.fingerprint import fingerprint
from foredraft.registry import backend_for, missing_dependency

if TYPE_CHECKING:
    from foredraft.draft.make.training import Acceptance, Trainer
    from foredraft.protocols import Model

SEQUENCES = 8
"""Answers that are generated at once."""

WAVE = 16
"""Prompts that are written, and answered, before they are stored."""

ANSWER_TOKENS = 256
ANSWER_CONTEXT = 1024
"""Tokens of a prompt and its answer, if no context length is asked for: eight of them are in memory."""

ANSWERS, FEATURES, TRAINING = "answers", "features", "training"
ANSWERING = 0.35
"""Part of the time that goes into answers."""

LEAST_TRAINING = 0.25
"""Part of the time that training has at least."""

LEAST_ROWS = 1_000
"""Rows of answers. From fewer nothing is learned that holds elsewhere."""

ROUNDING = 0.005
"""Acceptance that a smaller format may cost."""


class Stage(NamedTuple):
    """What is being done: how far it is (0 to 1), and a few words on it."""

    name: str
    done: float
    text: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asked for. `seconds`: for all stages together. `own`: whether the model writes prompts."""

    model: Path
    work: Path
    seconds: float
    traces: Path | None = None
    prompts: Path | None = None
    own: bool = True
    loading: EngineOptions = field(default_factory=EngineOptions)


@dataclass(frozen=True, slots=True)
class Target:
    """The model, known from its header. `layers` are those whose inputs the head reads."""

    path: Path
    summary: GGUFSummary
    hash: str
    layers: tuple[int, ...]

    @property
    def watch(self) -> tuple[str, ...]:
        return tuple(layer(number) for number in self.layers)

    @property
    def width(self) -> int:
        """Numbers of a row's features."""
        return len(self.layers) * self.summary.embedding_length


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head that can be written, in format `kind`. `acceptance` is that of the head as it is written, on
    answers that neither its training nor the choice of it has seen (`unseen`); `tokens` is how many it
    learned from.
    """

    facts: HeadFacts
    arrays: dict[str, npt.NDArray[np.float32]]
    vocabulary: npt.NDArray[np.int64]
    kind: str
    acceptance: Acceptance
    tokens: int
    unseen: tuple[Answer, ...]

    def write(self, path: Path) -> None:
        """Raises OSError."""
        write_gguf(path, self.arrays, self.vocabulary, self.facts, self.kind)

    def write_safetensors(self, folder: Path) -> None:
        """Raises OSError, MissingDependencyError."""
        write_safetensors(folder, self.arrays, self.vocabulary, self.facts)


def check_target(path: Path) -> Target:
    """The model, if a head can be made for it. Raises ModelError, MissingDependencyError: also where a
    package is missing that is needed later.
    """
    if not is_gguf(path):
        raise UnsupportedModelError(
            f"{path.name} is not a GGUF file; heads can be made for models in GGUF files only.",
            hint="Make one for the model's GGUF file.",
        )
    gguf_package()
    try:
        import torch  # noqa: F401
    except ImportError:
        raise missing_dependency("torch", "Making a head", extra="draft") from None
    summary = read_gguf(path)
    layers = layers_for(summary.block_count)
    target = Target(path, summary, fingerprint([summary.path]), layers)
    check(summary.name, target.watch, summary.architecture, layers=max(layers) + 1, following=0)
    if len(set(layers)) < len(layers) or max(layers) >= summary.block_count:
        raise UnsupportedModelError(
            f"{summary.name} has {summary.block_count} layers; a head reads the hidden states of three.",
            hint="A model that small needs no draft.",
        )
    return target


@contextmanager
def making(
    wishes: Wishes, tell: Callable[[Stage], None], note: Callable[[str], None]
) -> Iterator[TrainedHead]:
    """Do all stages, and keep other processes out of the work folder until the block ends. `tell` hears how
    far each stage is, once a second or so, and `note` what a user should know besides, in a sentence.

    Raises ConfigError, ModelError, CapacityError, MissingDependencyError, BackendError, OSError.
    """
    target = check_target(wishes.model)
    recipe = {"target": target.summary.name, "hash": target.hash, "layers": list(target.layers)}
    folder = WorkFolder(wishes.work, recipe)
    with folder.locked():
        yield _Job(wishes, target, folder, tell, note).run()


class _Job:
    """All stages, over one work folder that is locked."""

    def __init__(
        self,
        wishes: Wishes,
        target: Target,
        folder: WorkFolder,
        tell: Callable[[Stage], None],
        note: Callable[[str], None],
    ) -> None:
        self._wishes = wishes
        self._target = target
        self._folder = folder
        self._tell = tell
        self._note = note
        self._file = AnswerFile(folder.answers)
        self._store = RowStore(folder.rows, target.width)
        self._most = folder.most_rows(target.width)
        self._unseen: tuple[Answer, ...] = ()

    def run(self) -> TrainedHead:
        self._answers()
        self._features()
        parts = self._store.parts([answer.prompt for answer in self._file.answers])
        unseen = zip(self._file.answers, parts, strict=True)
        self._unseen = tuple(answer for answer, part in unseen if part is Part.FINAL)
        return self._train(self._store.read(parts))

    # --- answers -----------------------------------------------------------------------------------------

    def _answers(self) -> None:
        """Recorded answers first, then those to given prompts, then to prompts that the model writes."""
        wishes, file = self._wishes, self._file
        if wishes.traces is None and wishes.prompts is None and self._answered() >= 1.0:
            return
        options: EngineOptions = {**wishes.loading, "probe": False, "remember": False}
        options["sequences"] = SEQUENCES
        trained = self._target.summary.context_length or ANSWER_CONTEXT
        options["context_length"] = options.get("context_length") or min(ANSWER_CONTEXT, trained)
        with Engine.load(wishes.model, speculate="off", **options) as engine:
            if wishes.traces is not None:
                seen, found = file.prompts(), prompts.recorded(engine, wishes.traces)
                file.add([answer for answer in found if answer.prompt not in seen])
            seen = file.prompts() | prompts.for_measuring(engine.model.tokenizer)
            given = prompts.of_file(engine, wishes.prompts) if wishes.prompts is not None else []
            fresh = list(prompts.unseen(iter(given), seen, len(given)))
            asked = 0
            for wave in _waves(fresh, engine, seen, own=wishes.own) if self._answered() < 1.0 else ():
                self._answer(engine, wave)
                asked += len(wave)
                if self._answered() >= 1.0:
                    break
        if asked < len(fresh):
            self._note(
                f"{len(fresh) - asked} of the prompts in {wishes.prompts} are not used: the time for answers "
                "is over, or the space. More time: --minutes"
            )

    def _answered(self) -> float:
        """Which part of the time for answers, or of the space for what is read from them, is used."""
        spent = self._folder.spent(ANSWERS) / (ANSWERING * self._wishes.seconds)
        return min(1.0, max(spent, self._file.tokens / self._most))

    def _answer(self, engine: Engine, wave: list[tuple[str, list[int]]]) -> None:
        file, began = self._file, perf_counter()
        file.add(list(answers_to(engine, wave, len(file.answers), tokens=ANSWER_TOKENS)))
        self._folder.spend(ANSWERS, perf_counter() - began)
        text = f"{len(file.answers):,} answers, {file.tokens:,} tokens"
        self._tell(Stage(ANSWERS, self._answered(), text))

    # --- features ----------------------------------------------------------------------------------------

    def _features(self) -> None:
        """Read every answer once more, until the disk's share is full."""
        store, answers = self._store, self._file.answers
        if len(store.counts) < len(answers) and store.rows < self._most:
            model = self._watched()
            try:
                began = perf_counter()
                for found in answers[len(store.counts) :]:
                    rows = read_rows(model, found.prompt, found.answer)
                    store.add(rows, greedy=found.temperature == 0.0)
                    done = max(len(store.counts) / len(answers), store.rows / self._most)
                    self._tell(Stage(FEATURES, min(1.0, done), f"{store.rows:,} rows"))
                    if store.rows >= self._most:
                        break
                self._folder.spend(FEATURES, perf_counter() - began)
            finally:
                model.close()
        if store.rows < LEAST_ROWS:
            raise ConfigError(
                f"There is too little text to learn from: {store.rows:,} tokens, of {LEAST_ROWS:,} at least.",
                hint="Give it more time (--minutes), prompts (--prompts FILE) or recorded answers (--from).",
            )

    def _watched(self) -> Model:
        """The target, returning the hidden states that the head reads."""
        loading = model_options({**self._wishes.loading, "probe": False, "sequences": 1}).model
        return backend_for(self._target.path).load(
            self._target.path, replace(loading, watch=self._target.watch)
        )

    # --- training ----------------------------------------------------------------------------------------

    def _train(self, examples: Examples) -> TrainedHead:
        if not all(map(len, (examples.training, examples.choosing, examples.final))):
            raise ConfigError(
                "There are too few different prompts: it takes some to learn from, one to choose the best "
                "head on, and one to measure it on.",
                hint="Give more prompts, or more time.",
            )
        seconds, folder = self._wishes.seconds, self._folder
        before = folder.spent(ANSWERS) + folder.spent(FEATURES)
        budget = max(LEAST_TRAINING * seconds, seconds - before)
        trainer, vocabulary = self._resumed(examples, budget)
        if trainer.progress.done:
            self._note("The training had ended before; with more time (--minutes) it goes on.")
        try:
            trainer.run(
                lambda: self._tell(_training_stage(trainer, budget)), lambda: trainer.save(folder.checkpoint)
            )
        except KeyboardInterrupt:
            trainer.save(folder.checkpoint)
            raise
        trainer.use_best()
        return _finished(self._target, trainer, vocabulary, (len(examples.training), self._unseen))

    def _resumed(self, examples: Examples, budget: float) -> tuple[Trainer, npt.NDArray[np.int64]]:
        """A trainer that goes on from the checkpoint, if there is one, and the tokens that the head proposes:
        those that were chosen when the training began, whatever answers there are since.
        """
        checkpoint = self._folder.checkpoint
        if checkpoint.exists():
            from foredraft.draft.make.training import stored_vocabulary

            try:
                vocabulary = stored_vocabulary(checkpoint)
                trainer = self._trainer(examples, budget, vocabulary)
                trainer.resume(checkpoint)
                return trainer, vocabulary
            except (
                RuntimeError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                EOFError,
                OSError,
                UnpicklingError,
            ):
                self._note(f"{checkpoint} is damaged or of another version: the training begins again.")
                checkpoint.unlink(missing_ok=True)
        counts = self._counts(examples)
        vocabulary = choose_vocabulary(counts, at_most=most_tokens(self._target.summary.embedding_length))
        return self._trainer(examples, budget, vocabulary), vocabulary

    def _counts(self, examples: Examples) -> npt.NDArray[np.int64]:
        """How often each of the target's tokens is in what is learned from."""
        chosen = examples.parts == Part.LEARNING
        size = self._target.summary.vocab_size
        return count_tokens(size, examples.tokens[chosen], examples.likely[chosen])

    def _trainer(self, examples: Examples, budget: float, vocabulary: npt.NDArray[np.int64]) -> Trainer:
        """A trainer that begins."""
        import torch

        from foredraft.draft.make.torch_head import HeadNetwork
        from foredraft.draft.make.training import Trainer

        summary = self._target.summary
        parts = target_parts(list(summary.files))
        torch.manual_seed(0)
        network = HeadNetwork(
            sizes_for(summary.embedding_length, len(vocabulary)),
            scale=torch.from_numpy(examples.scale()),
            output=torch.from_numpy(parts.output[vocabulary].astype(np.float32)),
            output_norm=torch.from_numpy(parts.output_norm),
        )
        threads = self._wishes.loading.get("threads", 0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return Trainer(
            network, examples, parts.embeddings, vocabulary, budget=budget, device=device, threads=threads
        )


def _waves(
    fresh: list[tuple[str, list[int]]], engine: Engine, seen: set[tuple[int, ...]], *, own: bool
) -> Iterator[list[tuple[str, list[int]]]]:
    """Prompts that have no answer yet, a few at a time, without end if the model writes them: `own`."""
    for first in range(0, len(fresh), WAVE):
        yield fresh[first : first + WAVE]
    if not own:
        return
    writer = prompts.OwnPrompts(engine)
    empty = 0
    while empty < 8:  # a model that writes the same again and again is not asked for ever
        wave = list(prompts.unseen((("own", prompt) for prompt in writer.write(WAVE)), seen, WAVE))
        empty = 0 if wave else empty + 1
        if wave:
            yield wave


def _training_stage(trainer: Trainer, budget: float) -> Stage:
    progress = trainer.progress
    falling = progress.falling_from is not None
    end = progress.falling_until if falling else budget
    done = 1.0 if progress.done else min(1.0, progress.elapsed / max(end, 1e-9))
    words = f"{progress.batches:,} batches"
    if progress.measured:
        shares = " ".join(f"{share:.1%}" for share in progress.measured[-1][1].by_depth)
        words += f", right on unseen answers: {shares}"
    return Stage(TRAINING, done, words)


def _finished(
    target: Target, trainer: Trainer, vocabulary: npt.NDArray[np.int64], data: tuple[int, tuple[Answer, ...]]
) -> TrainedHead:
    """The trained head, in the smallest format that keeps its acceptance."""
    arrays = trainer.network.matrices()
    acceptances = {}
    for kind in FORMATS:
        trainer.network.read(rounded(arrays, kind))
        acceptances[kind] = trainer.acceptance()
    best = max(found.joint[0] for found in acceptances.values())
    kind = next(kind for kind in FORMATS if acceptances[kind].joint[0] >= best - ROUNDING)
    trainer.network.read(rounded(arrays, kind))
    acceptance = trainer.acceptance(final=True)
    sizes: Sizes = trainer.network.sizes
    summary = target.summary
    facts = HeadFacts(
        name=f"{summary.name} head",
        sizes=sizes,
        layers=target.layers,
        target=summary.path,
        target_name=summary.name,
        target_hash=target.hash,
        target_vocabulary=summary.vocab_size,
        context_length=summary.context_length,
        acceptance=acceptance.joint,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    )
    return TrainedHead(facts, arrays, vocabulary, kind, acceptance, *data)
