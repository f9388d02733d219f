"""Sampling at the command line: the user's flags, then the model's recommendation, then usual values for a
chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from foredraft.cli.help import COMMON, SAMPLING, option
from foredraft.cli.options import option_set
from foredraft.cli.values import Limit, Number, SomeText, Whole
from foredraft.sampling.params import REPETITION_HIGH, REPETITION_LOW, SAMPLING_FIELDS
from foredraft.types import SamplingParams

USUAL: Mapping[str, float] = {"temperature": 0.7, "top_p": 0.9}
"""Defaults if the model recommends none. Without a temperature a small model soon repeats itself."""

NEUTRAL: Mapping[str, float] = {"temperature": 1.0}
"""The temperature of a recommendation that has none."""

_SHAPE = {"temperature", "top_k", "top_p", "min_p"}

sampling_options = option_set(
    option("--max-tokens", "-n", group=COMMON, type=Whole(1), default=None, show_default="until it ends",
           help="Maximum number of tokens to generate."),
    option("--temperature", "--temp", group=COMMON, type=Number(0), default=None,
           show_default="as the model recommends, else 0.7", help="0 is greedy: always the likeliest token."),
    option("--seed", "-s", group=COMMON, type=Whole(), default=None, show_default="random",
           help="The same seed gives the same text."),
    option("--top-k", group=SAMPLING, type=Whole(0), default=None,
           show_default="as the model recommends, else off", help="Sample from the k likeliest; 0 is off."),
    option("--top-p", group=SAMPLING, type=Number(0, 1), default=None,
           show_default="as the model recommends, else 0.9", help="Nucleus sampling; 1 is off."),
    option("--min-p", group=SAMPLING, type=Number(0, 1), default=None,
           show_default="as the model recommends, else off",
           help="Drop tokens below this fraction of the highest probability; 0 is off."),
    option("--repetition-penalty", group=SAMPLING, type=Number(REPETITION_LOW, REPETITION_HIGH), default=None,
           show_default="as the model recommends, else off",
           help="Above 1 makes tokens of the prompt and the answer less likely; 1 is off."),
    option("--presence-penalty", group=SAMPLING, type=Number(-2, 2), default=0.0, show_default="off",
           help="Subtracted from the logit of every token that is in the answer."),
    option("--frequency-penalty", group=SAMPLING, type=Number(-2, 2), default=0.0, show_default="off",
           help="Subtracted for each time the token is in the answer."),
    option("--reasoning-budget", group=SAMPLING, type=Limit(), default=None, show_default="no limit",
           help="End the model's thought after N tokens, and go on to the answer; -1 is no limit."),
    option("--stop", group=SAMPLING, type=SomeText(), multiple=True, metavar="TEXT",
           help="Stop before this text. Repeatable."),
    option("--ignore-eos", group=SAMPLING, is_flag=True, help="Continue after the model's end token."),
    option("--stop-repetition/--no-stop-repetition", group=SAMPLING, default=True, show_default=True,
           help="Stop an answer that only repeats one passage."),
    option("--verify", group=SAMPLING, type=click.Choice(["match", "rejection", "block"]), default="match",
           show_default=True, help="How drafts are verified; only match keeps the same bytes."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling flags that were given."""

    given: Mapping[str, Any]

    def params(self, recommended: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters for a model with these recommendations (`ModelInfo.recommended`)."""
        usual = NEUTRAL if _SHAPE & recommended.keys() else USUAL
        return SamplingParams(**{**usual, **recommended, **self.given})


def take_sampling(options: dict[str, Any], *, logprobs: int | None = None) -> Sampling:
    """Pop the sampling flags from a command's options."""
    found = {name: options.pop(name) for name in SAMPLING_FIELDS if name in options}
    given = {name: value for name, value in found.items() if value is not None}
    return Sampling(given | {"logprobs": logprobs})
