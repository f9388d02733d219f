"""What was measured, and how it becomes a table: samples → scores by prompt → summaries by category.

A *sample* is one answer. Its rate over that of the baseline on the same prompt in the same pass is a
speedup, and the median over the passes the prompt's *speedup*: within a pass both answered in turns. The
prompt's rate is that of the fastest sample, because on a shared machine noise only ever adds time. Over
several prompts speedups and rates have a geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median

from foredraft.sequences import repeated_length

ALL = "all"
"""The name of the group of all categories."""

WITHOUT_LOOPS = "without loops"
"""The name of the group of all prompts whose answers do not loop, where some do."""

LOOP_COPIES = 2
LOOP_TOKENS = 64
"""An answer loops that ends with that many copies of a passage, of that many tokens together: a small
model writes them until its limit, and nothing is copied better.
"""

SHORTEST = 4
"""Answers of fewer tokens have no rate: one interval of the clock would decide it."""


@dataclass(frozen=True, slots=True)
class Run:
    """A round of decoding: how many draft tokens it accepted, and from whom ("" where there were none).

    The round committed one token more, the target's own.
    """

    accepted: int
    drafter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer. Times are milliseconds of wall clock; `decode_ms` begins with the first token.

    `tokens` and those of the `prompt` are ids, empty where they are not known: then `text` is what can be
    compared. `rounds`, `drafts` (rounds that verified a draft) and `runs` are 0 or empty where they are not
    known. `spent_ms` says where the time of decoding went. `exact`: its tokens are claimed to be those of
    plain decoding.
    """

    text: str
    count: int
    decode_ms: float
    tokens: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    prompt_tokens: int = 0
    prompt_ms: float = 0.0
    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_depth: tuple[int, ...] = ()
    spent_ms: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    exact: bool = False

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first one; None for an answer too short to have one."""
        if self.count < SHORTEST or self.decode_ms <= 0:
            return None
        return 1e3 * (self.count - 1) / self.decode_ms

    def same_as(self, other: Sample) -> bool:
        """Whether both gave the same tokens, or the same text where one of them has no token ids."""
        if self.tokens and other.tokens:
            return self.tokens == other.tokens
        return self.text == other.text


@dataclass(frozen=True, slots=True)
class Row:
    """One sample and where it belongs: prompt × setting × repeat."""

    prompt: str
    category: str
    setting: str
    repeat: int
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One prompt under one setting. `speedup` is over the baseline, None where either has no rate; it is the
    median over the passes, each compared with the baseline's answer of the same pass. `tokens_per_second` and
    what follows it are of the fastest pass; `passes` are the speedups of all.

    `different`: some repeat's text was not the baseline's; None where there was nothing to compare.
    `exact`: they were claimed to be the same. `looping`: the baseline's answer `loops`.
    """

    prompt: str
    category: str
    setting: str
    speedup: float | None
    passes: Sequence[float] = ()
    tokens_per_second: float | None = None
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    spent_ms: Mapping[str, float] = field(default_factory=dict)
    different: bool | None = None
    exact: bool = False
    looping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One setting over one category. Means are geometric; None is what was not measured.

    `acceptance_length` is committed tokens per round; `ms_per_token` says where the time went; `worst_passes`
    are the speedups of the worst prompt, pass by pass.
    """

    category: str
    setting: str
    prompts: int
    tokens_per_second: float | None
    speedup: float | None
    worst: float | None
    worst_prompt: str
    worst_passes: Sequence[float]
    acceptance_rate: float | None
    acceptance_length: float | None
    ms_per_token: Mapping[str, float]
    different: int | None


def loops(answer: Sequence[int]) -> bool:
    """Whether an answer, its end token included if it has one, ends in a loop that only its limit stopped."""
    longest = len(answer) // LOOP_COPIES
    return repeated_length(answer, copies=LOOP_COPIES, least=LOOP_TOKENS, longest=longest) is not None


def scores(rows: Iterable[Row], baseline: str) -> list[Score]:
    """One score for each prompt and setting, in the order in which they were first measured."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.prompt, row.setting), []).append(row)
    return [_score(group, groups.get((prompt, baseline), [])) for (prompt, _), group in groups.items()]


def answered_by_all(rows: Iterable[Row], settings: Sequence[str]) -> list[Row]:
    """The rows of those passes over a prompt in which every setting answered: the others compare nothing.

    Sorted by setting, in the order of `settings`.
    """
    passes: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        passes.setdefault((row.prompt, row.repeat), []).append(row)
    whole = [row for group in passes.values() if len(group) == len(settings) for row in group]
    return sorted(whole, key=lambda row: list(settings).index(row.setting))


def fastest(rows: Iterable[Row]) -> Row:
    """The row with the highest rate."""
    return max(rows, key=lambda row: row.sample.rate or 0.0)


def _score(group: Sequence[Row], plain: Sequence[Row]) -> Score:
    best = fastest(group)
    sample = best.sample
    # Repeat by repeat: a model whose arithmetic depends on the batch may answer otherwise once its prompt
    # is in the cache, and that is not what speculation did.
    yardstick = {row.repeat: row.sample for row in plain}
    comparable = [row for row in group if row.repeat in yardstick]
    speedups = [
        mine / plainly
        for row in comparable
        if (mine := row.sample.rate) and (plainly := yardstick[row.repeat].rate)
    ]
    return Score(
        prompt=best.prompt,
        category=best.category,
        setting=best.setting,
        speedup=median(speedups) if speedups else None,
        passes=speedups,
        tokens_per_second=sample.rate,
        tokens=sample.count,
        rounds=sample.rounds,
        drafted=sample.drafted,
        accepted=sample.accepted,
        spent_ms=sample.spent_ms,
        different=any(not row.sample.same_as(yardstick[row.repeat]) for row in comparable)
        if comparable
        else None,
        exact=sample.exact,
        looping=any(loops(row.sample.tokens) for row in plain),
    )


def summaries(found: Sequence[Score]) -> list[Summary]:
    """Category after category, each with all settings in order; `ALL` at the end, and before it
    `WITHOUT_LOOPS` where some answers loop and some do not.
    """
    settings = list(dict.fromkeys(score.setting for score in found))
    categories = list(dict.fromkeys(score.category for score in found))
    groups = [(name, [score for score in found if score.category == name]) for name in categories]
    others = [score for score in found if not score.looping]
    groups += [(WITHOUT_LOOPS, others)] if 0 < len(others) < len(found) else []
    return [
        _summary(name, setting, chosen)
        for name, group in [*groups, (ALL, list(found))]
        for setting in settings
        if (chosen := [score for score in group if score.setting == setting])
    ]


def _summary(category: str, setting: str, group: Sequence[Score]) -> Summary:
    rates = [score.tokens_per_second for score in group if score.tokens_per_second]
    rated = [(score.speedup, score) for score in group if score.speedup]
    worst, whose = min(rated, key=lambda it: (it[0], it[1].prompt), default=(None, None))
    drafted, accepted = sum(score.drafted for score in group), sum(score.accepted for score in group)
    counted = [score for score in group if score.rounds]
    compared = [score for score in group if score.different is not None]
    decoded = sum(score.tokens - 1 for score in group if score.spent_ms)
    parts = list(dict.fromkeys(part for score in group for part in score.spent_ms))
    return Summary(
        category=category,
        setting=setting,
        prompts=len(group),
        tokens_per_second=geometric_mean(rates) if rates else None,
        speedup=geometric_mean([speedup for speedup, _ in rated]) if rated else None,
        worst=worst,
        worst_prompt=whose.prompt if whose else "",
        worst_passes=whose.passes if whose else (),
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=sum(score.tokens - 1 for score in counted) / sum(score.rounds for score in counted)
        if counted
        else None,
        ms_per_token={part: sum(score.spent_ms.get(part, 0.0) for score in group) / decoded for part in parts}
        if decoded
        else {},
        different=sum(bool(score.different) for score in compared) if compared else None,
    )


def loop_notes(found: Sequence[Score]) -> list[str]:
    """What a reader must know of answers that loop; nothing where there are none."""
    asked = dict.fromkeys(score.prompt for score in found)
    looping = list(dict.fromkeys(score.prompt for score in found if score.looping))
    if not looping:
        return []
    said = f"{len(looping)} of {len(asked)} answers loop until their limit, which is what copying is best at"
    return [f"{said}; figures {WITHOUT_LOOPS} leave them out: {', '.join(looping)}"]


def acceptance_by_depth(rows: Iterable[Row]) -> tuple[float, ...]:
    """Of the drafts that were verified, the share whose token at depth 1, 2, … was accepted."""
    drafts, counts = 0, list[int]()
    for row in rows:
        drafts += row.sample.drafts
        by_depth = row.sample.accepted_by_depth
        counts.extend([0] * (len(by_depth) - len(counts)))
        for depth, count in enumerate(by_depth):
            counts[depth] += count
    return tuple(count / drafts for count in counts) if drafts else ()


def noise(rows: Iterable[Row], setting: str) -> float | None:
    """How much faster the best pass over a prompt was than the worst: a share, the median over the prompts.
    None with a single pass.
    """
    rates: dict[str, list[float]] = {}
    for row in rows:
        if row.setting == setting and row.sample.rate:
            rates.setdefault(row.prompt, []).append(row.sample.rate)
    return _spread(rates.values())


def speedup_noise(found: Iterable[Score], baseline: str) -> float | None:
    """The same of the speedups over `baseline`. Settings that differ by less may differ by chance."""
    return _spread(score.passes for score in found if score.setting != baseline)


def _spread(passes: Iterable[Sequence[float]]) -> float | None:
    """By how much the largest of several figures is above the smallest, as a share: the median."""
    ratios = [max(figures) / min(figures) - 1 for figures in passes if len(figures) > 1]
    return median(ratios) if ratios else None


def broken_promises(found: Iterable[Score]) -> list[Score]:
    """Prompts whose tokens differ from the baseline's though they were said to be exactly those."""
    return [score for score in found if score.exact and score.different]
