"""Whether a head that was made is worth using on this machine: scored and tried out on answers that neither
its training nor the choice of it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from foredraft.config import OFF, Speculation, Stage
from foredraft.draft.make.answers import Answer, never
from foredraft.draft.pair import WITHOUT, Pair, try_out
from foredraft.draft.passages import Passage, of_answer, of_text
from foredraft.draft.reading import HeadGuesses
from foredraft.draft.result import Result, result_of, sentence
from foredraft.draft.score import Scorer
from foredraft.engine.engine import Engine
from foredraft.engine.heads import HEADS
from foredraft.engine.options import EngineOptions
from foredraft.errors import ConfigError, UnsupportedModelError

PASSAGES = 16
"""That are scored at most."""

LEAST_PLACES = 500
"""Places in these answers below which no head is installed: of 500 a share is known to about two hundredths,
and what is right at one place often is so at the next."""


COMPARED = 3
"""Draft tokens at which heads are compared."""


class Judgement(NamedTuple):
    """A head's score, over `places` positions in `answers` answers."""

    result: Result
    places: int
    answers: int

    @property
    def installs(self) -> bool:
        """Whether the head is worth using here, as far as is known."""
        return self.places >= LEAST_PLACES and self.result.uses

    @property
    def tokens(self) -> float:
        """Tokens of a round with a draft of `COMPARED`: does not depend on times, so that two heads that are
        judged on the same answers can be compared by it.
        """
        rule = next(found for found in self.result.rules if found.rule == "match")
        return rule.lengths[COMPARED - 1]

    @property
    def text(self) -> str:
        """What was found, in sentences."""
        answers = "1 answer" if self.answers == 1 else f"{self.answers} answers"
        places = f"{self.places:,} places in {answers} that were kept for this"
        if self.places < LEAST_PLACES:
            return (
                f"Judged at {places}: too few to install a head by, {LEAST_PLACES} are the least. More time "
                f"(--minutes) gives more. {sentence(self.result)}"
            )
        return f"Judged at {places}. {sentence(self.result)}"


def judge(
    model: Path,
    head: Path,
    answers: Sequence[Answer],
    loading: EngineOptions,
    *,
    over: Callable[[], bool] = never,
) -> Judgement:
    """Score a head on answers of the model, on no more than it takes where the time is `over`, and try it
    out. Raises ConfigError where no answer is long enough, and what loading raises.
    """
    passages = list(islice(_passages(answers), PASSAGES))
    if not passages:
        raise ConfigError("There is no answer to score the head on.", hint="Give it more time (--minutes).")
    options: EngineOptions = {**loading, "probe": False, "remember": False, "sequences": 1}
    stage = Stage(HEADS, {"model": str(head)})
    with ExitStack() as stack:
        without, other = Engine.load_together(
            model, [WITHOUT, Speculation(adaptive=False, stages=(stage,))], **options
        )
        stack.enter_context(without)
        stack.enter_context(other)
        if HEADS not in other.setup.drafters.names:
            raise UnsupportedModelError("; ".join(other.setup.all_notes()))
        other.set_speculation(OFF)
        target = other.model
        trained = target.load_head(head, sequences=1)
        stack.callback(trained.close)
        pair = Pair(without, other, HeadGuesses(trained), trained, stage, trained.needs)
        scorer = Scorer(target, pair.guesses, pair.needs)
        for number, passage in enumerate(passages):
            if over() and sum(one.scored for one in passages[:number]) >= LEAST_PLACES:
                passages = passages[:number]
                break
            scorer.add(passage)
        about = {
            "model": target.info.name,
            "scored on": f"{len(passages)} passages of answers that were kept for this",
        }
        result = result_of(target.info.name, head.name, about, scorer, try_out(pair, passages))
        return Judgement(result, result.tallies[0].positions, len(passages))


def _passages(answers: Sequence[Answer]) -> Iterator[Passage]:
    """The first passage of each answer. What the model chose in greedy ones is the text; in others a draft is
    right where it agrees with the model.
    """
    for answer in answers:
        if answer.temperature == 0.0:
            yield from islice(of_answer(answer.prompt, answer.answer, temperature=0.0, seed=1, cut=True), 1)
    for answer in answers:
        if answer.temperature != 0.0:
            room, begin = len(answer.tokens), len(answer.prompt)
            yield from islice(of_text(answer.tokens, temperature=0.0, seed=1, room=room, begin=begin), 1)
