"""A complete drafter: after the same two tokens, propose what followed them last time, and go on from there.

docs/write-a-drafter.md walks through this file. It needs no model. Run: python examples/my_drafter.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foredraft import Engine, SamplingParams
from foredraft.config import read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.testing import FakeModel, assert_lossless, drafter_context, run_drafter
from foredraft.types import Draft, DraftLimit, Outcome

NAME = "last-seen"


@dataclass(slots=True)
class Followers:
    """What is known of one request: the token that last followed each pair of tokens."""

    covered: int = 0
    after: dict[tuple[int, int], int] = field(default_factory=dict)

    def learn(self, tokens: list[int]) -> None:
        for i in range(max(2, self.covered), len(tokens)):
            self.after[tokens[i - 2], tokens[i - 1]] = tokens[i]
        self.covered = len(tokens)


class LastSeen(HistoryDrafter[Followers]):
    """Follows the pairs for at most `longest` tokens. Memory: one dictionary entry a token."""

    name = NAME

    def __init__(self, longest: int) -> None:
        super().__init__()
        self._longest = longest

    def build(self, request: RequestView) -> Followers:
        state = Followers()
        state.learn(request.tokens)
        return state

    def extend(self, state: Followers, request: RequestView, outcome: Outcome) -> None:  # noqa: ARG002
        state.learn(request.tokens)

    def size(self, state: Followers) -> int:
        return state.covered

    def propose(self, state: Followers, request: RequestView, limit: DraftLimit) -> Draft | None:
        text = request.tokens[-2:]
        known = len(text)
        while known == 2 and len(text) - known < min(self._longest, limit.max_tokens):
            token = state.after.get((text[-2], text[-1]))
            if token is None:
                break
            text.append(token)
        drafted = tuple(text[known:])
        return Draft(drafted, NAME, features={"match_length": 2}) if drafted else None


def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:  # noqa: ARG001
    """The entry point. Its option is `max`, the longest draft. Raises SpeculationStringError."""
    longest = read_options(NAME, options, {"max": 16})["max"]
    if longest < 1:
        raise SpeculationStringError(f"{NAME}: max={longest} must be at least 1.")
    return LastSeen(longest)


def main() -> None:
    text = [1, 2, 3, 4, 5, 6] * 4
    drafts = run_drafter(create(drafter_context(), {"max": "8"}), text, prompt=12)
    assert drafts[0].tokens == (1, 2, 3, 4, 5, 6, 1, 2)

    accepted = assert_lossless(
        lambda: FakeModel(vocab_size=8),
        lambda target: [create(drafter_context(target), {})],
        prompts=[[1, 2, 3], [5, 6] * 20],
        params=SamplingParams(temperature=0.8, seed=1, max_tokens=200, ignore_eos=True),
    )
    print(f"the same tokens with and without drafts; who proposed them: {dict(accepted)}")

    with Engine(FakeModel(), drafters=[LastSeen(16)]) as engine:
        print(engine.generate([1, 2, 3], max_tokens=200).speculation)


if __name__ == "__main__":
    main()
