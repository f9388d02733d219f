"""A target and what is tried as a draft for it, in engines that share the target's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foredraft.config import OFF, Speculation, Stage
from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.reading import Guesses
from foredraft.draft.trial import Lengths, Trial, compare_auto, some, time_rounds
from foredraft.engine.engine import Engine
from foredraft.engine.heads import HEADS
from foredraft.protocols import Drafter, DrafterContext, Head, Model
from foredraft.registry import create_drafter
from foredraft.sampling.coupled import CoupledSampler

WITHOUT = Speculation(stages=(Stage(HEADS, {"model": OFF}),))
"""`auto` without a head, also if one belongs to the model."""


@dataclass(frozen=True, slots=True)
class Pair:
    """`answering` speculates as it likes, but not with the draft; `other` drafts with nothing, and its model
    is read to score. `guesses` are those of what is scored, `drafting`, which reads the features `needs`.
    `stage` is how the draft is named to an engine.
    """

    answering: Engine
    other: Engine
    guesses: Guesses
    drafting: Model | Head
    stage: Stage
    needs: tuple[str, ...] = ()

    @property
    def target(self) -> Model:
        """The model that is read."""
        return self.other.model


def try_out(pair: Pair, passages: Sequence[Passage]) -> Trial:
    """Try the draft on what comes before passages that were scored. `answering` then speculates with `auto`,
    and `other` with `auto` and the draft.

    Raises what making a drafter and running engines does.
    """
    _forget(pair)
    pair.answering.set_speculation(OFF)
    planner = Lengths()
    # Its model and its draft belong to others, so it is not closed.
    drafting = Engine(pair.target, drafters=[_drafter(pair)], planner=planner)
    asked = some([one for one in passages if one.opens] or passages)
    prompts = [one.tokens[: one.first] for one in asked]
    times = {
        temperature: time_rounds(pair.answering, drafting, planner, prompts, temperature=temperature)
        for temperature in sorted({one.temperature for one in passages})
    }
    _forget(pair)
    pair.answering.set_speculation(WITHOUT)
    pair.other.set_speculation(Speculation(stages=(pair.stage,)))
    if pair.stage.name not in pair.other.setup.drafters.names:  # a second copy of it did not fit, say
        return Trial(times, None)
    return Trial(times, compare_auto(pair.answering, pair.other, asked))


def _forget(pair: Pair) -> None:
    """Drop what lies in sequences that no engine knows of."""
    for seq in range(pair.target.capabilities.sequences):
        pair.target.release(seq)
    pair.drafting.release(0)


def _drafter(pair: Pair) -> Drafter:
    """Drafts chains with what was loaded to be scored."""
    target, drafting = pair.target, pair.drafting

    def model(path: str, *, sequences: int, context_length: int) -> Model:  # noqa: ARG001
        return drafting  # type: ignore[return-value]

    def head(path: str, *, sequences: int) -> Head:  # noqa: ARG001
        return drafting  # type: ignore[return-value]

    context = DrafterContext(
        target=target.info,
        capabilities=replace(target.capabilities, trees=False),
        tokenizer=target.tokenizer,
        sampler=CoupledSampler(target.info.vocab_size, target.tokenizer.end_tokens),
        load_model=model,
        load_head=head,
    )
    return create_drafter(Stage(pair.stage.name, {**pair.stage.options, "max": str(DEPTHS)}), context)
