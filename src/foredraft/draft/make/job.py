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
from foredraft.bench.trace import read_traces
from foredraft.bench.workloads import load_prompts
from foredraft.draft.make import prompts
from foredraft.draft.make.answers import Answer, AnswerFile, answers_to
from foredraft.draft.make.clock import JobClock
from foredraft.draft.make.features import read_rows
from foredraft.draft.make.parts import Part
from foredraft.draft.make.recorded import recorded
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

MOST_EMPTY = 8
"""Times that a model may write no new prompt, one after another."""

REPORTED_EVERY_S = 1.0

ANSWER_TOKENS = 256
ANSWER_CONTEXT = 1024
"""Tokens of a prompt and its answer, if no context length is asked for: eight of them are in memory."""

ANSWERS, FEATURES, WEIGHTS, TRAINING, JUDGING = "answers", "features", "weights", "training", "judging"
ANSWERING = 0.3
"""Part of the time in which the model is loaded, and writes prompts and answers."""

SLOW_ANSWERING = 0.5
"""The same, where there are hardly answers after that."""

READING = 0.3
"""Part of the time in which answers are read once more, at most: what is left of it, training has."""

LEAST_TRAINING = 0.25
"""Part of the time that training has at least."""

SCORING, SCORING_S = 0.1, 60.0
"""Part of the time, and seconds at most, that are kept for writing a head and scoring it."""

LEAST_ROWS = 1_000
"""Rows of answers. From fewer nothing is learned that holds elsewhere."""

ROUNDING = 0.005
"""Acceptance that a smaller format may cost."""


UNREADABLE = (
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    UnpicklingError,
)
"""What reading a damaged checkpoint raises."""


class Stage(NamedTuple):
    """What is being done: how far it is (0 to 1), a few words on it, and in how many seconds all stages are
    done, at most.
    """

    name: str
    done: float
    text: str
    left: float


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asked for. `seconds`: for all stages together, `began`: when they began on the clock `now`.
    `own`: whether the model writes prompts.
    """

    model: Path
    work: Path
    seconds: float
    traces: Path | None = None
    prompts: Path | None = None
    own: bool = True
    loading: EngineOptions = field(default_factory=EngineOptions)
    began: float | None = None
    now: Callable[[], float] = perf_counter

    @property
    def scoring(self) -> float:
        """Seconds that are kept for scoring the head."""
        return min(SCORING * self.seconds, SCORING_S)


class Made(NamedTuple):
    """What a job made, and the clock on which it is judged."""

    head: TrainedHead
    clock: JobClock


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
def making(wishes: Wishes, tell: Callable[[Stage], None], note: Callable[[str], None]) -> Iterator[Made]:
    """Do all stages, and keep other processes out of the work folder until the block ends. `tell` hears how
    far each stage is, once a second or so, and `note` what a user should know besides, in a sentence.

    Raises ConfigError, ModelError, CapacityError, MissingDependencyError, BackendError, OSError.
    """
    _read_given(wishes)
    target = check_target(wishes.model)
    recipe = {"target": target.summary.name, "hash": target.hash, "layers": list(target.layers)}
    folder = WorkFolder(wishes.work, recipe)
    with folder.locked():
        job = _Job(wishes, target, folder, tell, note)
        yield Made(job.run(), job.clock)


def _read_given(wishes: Wishes) -> None:
    """Raises ConfigError for a file that cannot be read, before a model is loaded and time is spent."""
    if wishes.traces is not None:
        read_traces(wishes.traces)
    if wishes.prompts is not None:
        load_prompts(wishes.prompts)


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
        self.clock = JobClock(folder, wishes.seconds, now=wishes.now, began=wishes.began)
        self._wishes = wishes
        self._target = target
        self._folder = folder
        self._report = tell
        self._told = -REPORTED_EVERY_S
        self._note = note
        self._file = AnswerFile(folder.answers)
        self._store = RowStore(folder.rows, target.width)
        self._most = folder.most_rows(target.width)
        self._unseen: tuple[Answer, ...] = ()

    def run(self) -> TrainedHead:
        with self.clock.stage(ANSWERS):
            self._answers()
        before = self._made_before()
        if before is not None:
            self._note(
                "It was made before. With more time (--minutes) or more answers it is trained further."
            )
            return before
        with self.clock.stage(FEATURES):
            self._features()
        parts = self._store.parts([answer.prompt for answer in self._file.answers])
        unseen = zip(self._file.answers, parts, strict=True)
        self._unseen = tuple(answer for answer, part in unseen if part is Part.FINAL)
        return self._train(self._store.read(parts))

    def _tell(self, stage: str, done: float, text: str, *, left: float | None = None) -> None:
        """Report at most once a second, and whatever is complete."""
        now = self._wishes.now()
        if now - self._told >= REPORTED_EVERY_S or done >= 1.0:
            self._told = now
            self._report(Stage(stage, done, text, self.clock.left() if left is None else left))
        self.clock.keep_sometimes()

    # --- answers -----------------------------------------------------------------------------------------

    def _answers(self) -> None:
        """Recorded answers first, then those to given prompts, then to prompts that the model writes."""
        wishes, file = self._wishes, self._file
        if wishes.traces is None and wishes.prompts is None and self._answered() >= 1.0:
            return
        self._report(Stage(ANSWERS, self._answered(), "loading the model", self.clock.left()))
        options: EngineOptions = {**wishes.loading, "probe": False, "remember": False}
        options["sequences"] = SEQUENCES
        trained = self._target.summary.context_length or ANSWER_CONTEXT
        options["context_length"] = options.get("context_length") or min(ANSWER_CONTEXT, trained)
        with Engine.load(wishes.model, speculate="off", **options) as engine:
            if wishes.traces is not None:
                found, name = recorded(engine, wishes.traces)
                self._learn_from(found, name, engine.model.info.name)
            seen = file.prompts() | prompts.for_measuring(engine.model.tokenizer)
            given = prompts.of_file(engine, wishes.prompts) if wishes.prompts is not None else []
            fresh = list(prompts.unseen(iter(given), seen, len(given)))
            for first in range(0, len(fresh), WAVE):
                self._answer(engine, fresh[first : first + WAVE])
            answered = file.prompts()
            unused = sum(tuple(prompt) not in answered for _, prompt in fresh) if self._enough() else 0
            if wishes.own:
                self._answer_own(engine, seen)
        if unused:
            self._note(
                f"{unused} of the prompts in {wishes.prompts} are not used: the time for answers is over, or "
                "the space. More time: --minutes"
            )

    def _learn_from(self, found: list[Answer], recorded_with: str, name: str) -> None:
        """Add recorded answers, those to new prompts."""
        seen = self._file.prompts()
        fresh = [answer for answer in found if answer.prompt not in seen]
        self._file.add(fresh)
        if fresh:
            self._note(
                f"{len(fresh):,} recorded answers are learned from. At which temperature they were chosen is "
                "not recorded: they count as sampled."
            )
        if fresh and recorded_with != name:
            self._note(
                f"They were recorded with {recorded_with}. Whether that is this model, perhaps in another "
                "quantisation, cannot be known: a head learns best from the model's own answers."
            )

    def _answered(self) -> float:
        """Which part of the time for answers, or of the space for what is read from them, is used."""
        part = ANSWERING if self._file.tokens >= 2 * LEAST_ROWS else SLOW_ANSWERING
        spent = self.clock.spent(ANSWERS) / (part * self._wishes.seconds)
        return min(1.0, max(spent, self._file.tokens / self._most))

    def _enough(self) -> bool:
        return self._answered() >= 1.0

    def _answer(self, engine: Engine, wave: list[tuple[str, list[int]]]) -> None:
        """Answer these prompts, unless there is enough. An answer is stored as soon as it is complete."""
        file, first = self._file, len(self._file.answers)
        if self._enough():
            return

        def over() -> bool:
            text = f"{len(file.answers):,} answers, {file.tokens:,} tokens"
            self._tell(ANSWERS, self._answered(), text)
            return self._enough()

        for answer in answers_to(engine, wave, first, tokens=ANSWER_TOKENS, over=over):
            file.add([answer])

    def _answer_own(self, engine: Engine, seen: set[tuple[int, ...]]) -> None:
        """Answer prompts that the model writes, until there are enough, or it writes the same again and
        again.
        """
        writer = prompts.OwnPrompts(engine)
        empty = 0
        while empty < MOST_EMPTY and not self._enough():
            written = (("own", prompt) for prompt in writer.write(WAVE, self._enough))
            wave = list(prompts.unseen(written, seen, WAVE))
            empty = 0 if wave else empty + 1
            self._answer(engine, wave)

    # --- features ----------------------------------------------------------------------------------------

    def _features(self) -> None:
        """Read every answer once more, until the time for that is over or the disk's share is full."""
        store, answers = self._store, self._file.answers
        if len(store.counts) < len(answers) and not self._read(0.0):
            self._report(Stage(FEATURES, 0.0, "loading the model", self.clock.left()))
            model = self._watched()
            try:
                for found in answers[len(store.counts) :]:
                    rows = read_rows(model, found.prompt, found.answer)
                    store.add(rows, greedy=found.temperature == 0.0)
                    if self._read(len(store.counts) / len(answers)):
                        break
            finally:
                model.close()
        if store.rows < LEAST_ROWS:
            raise self._too_little()

    def _too_little(self) -> ConfigError:
        """An error that says how much time there should be, as far as that can be known."""
        rows = self._store.rows
        message = f"There is too little text to learn from: {rows:,} tokens, of {LEAST_ROWS:,} at least."
        wanted = "prompts (--prompts FILE) or recorded answers (--from)"
        tokens, spent = self._file.tokens, self.clock.spent(ANSWERS)
        if self._wishes.own and 0 < tokens < LEAST_ROWS:
            minutes = spent * 10 * LEAST_ROWS / tokens / ANSWERING / 60
            return ConfigError(message, hint=f"Give it more time (--minutes {minutes:.0f}), {wanted}.")
        return ConfigError(message, hint=f"Give it more time (--minutes), {wanted}.")

    def _read(self, part: float) -> bool:
        """Whether enough is read, `part` of all answers being it: the time is over, or the space."""
        rows, spent = self._store.rows, self.clock.spent(FEATURES) / (READING * self._wishes.seconds)
        done = max(part, rows / self._most, spent if rows >= LEAST_ROWS else 0.0)
        if part:
            self._tell(FEATURES, min(1.0, done), f"{rows:,} rows")
        return done >= 1.0

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
        with self.clock.stage(WEIGHTS):
            trainer, vocabulary = self._resumed(examples)
        self._folder.note(None)
        with self.clock.stage(TRAINING):
            self._run(trainer)
        with self.clock.stage(JUDGING):
            made = _finished(self._target, trainer, vocabulary, (len(examples.training), self._unseen))
        self._folder.note({
            "seconds": self._wishes.seconds,
            "answers": len(self._file.answers),
            "unseen": [number for number, found in enumerate(self._file.answers) if found in self._unseen],
            "kind": made.kind,
            "acceptance": list(made.acceptance.joint),
            "places": made.acceptance.rows,
            "tokens": made.tokens,
            "made": made.facts.made,
        })  # fmt: skip
        return made

    def _made_before(self) -> TrainedHead | None:
        """The head that an earlier run finished of these answers, in no less time; None if there is none."""
        from foredraft.draft.make.training import Acceptance, stored_head

        noted, answers = self._folder.noted(), self._file.answers
        try:
            if noted["answers"] != len(answers) or noted["seconds"] < self._wishes.seconds:
                return None
            width = self._target.summary.embedding_length
            network, vocabulary = stored_head(self._folder.checkpoint, width)
            acceptance = Acceptance(tuple(noted["acceptance"]), noted["places"])
            facts = _facts(self._target, network.sizes, acceptance, str(noted["made"]))
            unseen = tuple(answers[number] for number in noted["unseen"])
            return TrainedHead(
                facts, network.matrices(), vocabulary, noted["kind"], acceptance, noted["tokens"], unseen
            )
        except UNREADABLE:  # it is made again
            return None

    def _run(self, trainer: Trainer) -> None:
        """Train until the time is over, or nothing is gained any more."""
        checkpoint = self._folder.checkpoint

        def report() -> None:
            left = trainer.left + self._wishes.scoring
            self._tell(TRAINING, *_training_state(trainer), left=min(left, self.clock.left()))

        try:
            trainer.run(report, lambda: trainer.save(checkpoint))
        except KeyboardInterrupt:
            trainer.save(checkpoint)
            raise
        trainer.use_best()

    def _training_budget(self) -> float:
        """Seconds for training, in all runs: what is left of the time, and a part of it in any case."""
        seconds = self._wishes.seconds
        before = sum(self.clock.spent(stage) for stage in (ANSWERS, FEATURES, WEIGHTS))
        return max(LEAST_TRAINING * seconds, seconds - before - self._wishes.scoring)

    def _resumed(self, examples: Examples) -> tuple[Trainer, npt.NDArray[np.int64]]:
        """A trainer that goes on from the checkpoint, if there is one, and the tokens that the head proposes:
        those that were chosen when the training began, whatever answers there are since.
        """
        checkpoint = self._folder.checkpoint
        if checkpoint.exists():
            from foredraft.draft.make.training import stored_vocabulary

            try:
                vocabulary = stored_vocabulary(checkpoint)
                trainer = self._trainer(examples, vocabulary)
                trainer.resume(checkpoint)
                return trainer, vocabulary
            except UNREADABLE:
                self._note(f"{checkpoint} is damaged or of another version: the training begins again.")
                checkpoint.unlink(missing_ok=True)
        counts = self._counts(examples)
        vocabulary = choose_vocabulary(counts, at_most=most_tokens(self._target.summary.embedding_length))
        return self._trainer(examples, vocabulary), vocabulary

    def _counts(self, examples: Examples) -> npt.NDArray[np.int64]:
        """How often each of the target's tokens is in what is learned from."""
        chosen = examples.parts == Part.LEARNING
        size = self._target.summary.vocab_size
        return count_tokens(size, examples.tokens[chosen], examples.likely[chosen])

    def _trainer(self, examples: Examples, vocabulary: npt.NDArray[np.int64]) -> Trainer:
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
            network,
            examples,
            parts.embeddings,
            vocabulary,
            budget=self._training_budget(),
            device=device,
            threads=threads,
            clock=self._wishes.now,
        )


def _training_state(trainer: Trainer) -> tuple[float, str]:
    """(how far it is, a few words on it)."""
    progress = trainer.progress
    done = 1.0 if progress.done else progress.elapsed / max(progress.elapsed + trainer.left, 1e-9)
    words = f"{progress.batches:,} batches"
    if progress.measured:
        shares = " ".join(f"{share:.1%}" for share in progress.measured[-1][1].by_depth)
        words += f", right: {shares}"
    return done, words


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
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    facts = _facts(target, trainer.network.sizes, acceptance, made)
    return TrainedHead(facts, arrays, vocabulary, kind, acceptance, *data)


def _facts(target: Target, sizes: Sizes, acceptance: Acceptance, made: str) -> HeadFacts:
    summary = target.summary
    return HeadFacts(
        name=f"{summary.name} head",
        sizes=sizes,
        layers=target.layers,
        target=summary.path,
        target_name=summary.name,
        target_hash=target.hash,
        target_vocabulary=summary.vocab_size,
        context_length=summary.context_length,
        acceptance=acceptance.joint,
        made=made,
    )
