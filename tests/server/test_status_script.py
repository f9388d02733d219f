"""The status page's script, run by Node.js where that is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

from foredraft.server.page.status import SCRIPTS

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")

DRAFTED = {"drafter": "suffix", "drafted": 3, "accepted": 2, "expected_gain": 1.4, "reason": None}
NOT = {"drafter": None, "drafted": 0, "accepted": 0, "expected_gain": None, "reason": "why"}
DECISION: dict[str, Any] = {
    "round": 7,
    "rows": 4,
    "ms": {"draft": 1, "verify": 8, "sample": 0.5, "other": 0.5},
    "requests": [{**DRAFTED, "committed": 3}],
}
PLAIN: dict[str, Any] = {**DECISION, "rows": 1, "requests": [{**NOT, "committed": 1}]}


def source(*names: str) -> str:
    folder = files("foredraft.server.page")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def node(script: str, *options: str) -> str:
    assert NODE is not None
    done = subprocess.run(
        [NODE, *options, "-"],
        input=script,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def value(expression: str, **given: object) -> Any:
    """What an expression over the page's plain functions comes to."""
    names = "".join(f"const {name} = {json.dumps(each)};\n" for name, each in given.items())
    code = source("elements.js", "cost.js", "rounds.js")
    return json.loads(node(f"{code}\n{names}console.log(JSON.stringify({expression}))"))


def numbered(first: int, last: int, **changes: object) -> list[dict[str, object]]:
    return [{**DECISION, **changes, "round": number} for number in range(first, last + 1)]


def test_the_whole_script_is_valid() -> None:
    node(source(*SCRIPTS), "--check", "--input-type=module")


def test_rounds_of_two_looks_are_put_together() -> None:
    found = value(
        "withRounds(withRounds([], first), second).map((round) => round.number)",
        first=numbered(1, 4),
        second=numbered(3, 6),
    )
    assert found == [1, 2, 3, 4, 5, 6]


def test_rounds_of_an_engine_that_was_loaded_anew_begin_anew() -> None:
    found = value(
        "withRounds(withRounds([], first), second).map((round) => round.number)",
        first=numbered(90, 99),
        second=numbered(1, 2),
    )
    assert found == [1, 2]
    assert value("withRounds(withRounds([], first), [])", first=numbered(1, 2)) == []


def test_a_round_s_requests_are_taken_together() -> None:
    shared = {**DECISION, "rows": 5, "requests": [*DECISION["requests"], *PLAIN["requests"]]}
    found = value("roundOf(shared)", shared=shared)
    counts = {"number": 7, "rows": 5, "requests": 2, "drafted": 3, "accepted": 2, "committed": 4, "ms": 10}
    assert found == {**counts, "drafters": ["suffix"], "gains": [1.4], "reasons": ["why"]}


def test_outcomes_are_counted_most_first() -> None:
    found = value("outcomesOf(decisions.map(roundOf))", decisions=[DECISION, PLAIN, PLAIN])
    assert found == [["why", 2], ["drafted by suffix", 1]]


def test_outcomes_add_up_to_the_rounds() -> None:
    """A round of several requests was counted once for each drafter and each reason."""
    [drafted], [plain] = DECISION["requests"], PLAIN["requests"]
    many = [
        {**DECISION, "requests": [drafted, {**drafted, "drafter": "recycle"}, plain]},
        {**DECISION, "requests": [{**drafted, "drafter": "recycle"}, drafted]},
        {**PLAIN, "requests": [plain, {**plain, "reason": "another"}]},
        {**PLAIN, "requests": [{**plain, "reason": None}]},
    ]
    found = value("outcomesOf(decisions.map(roundOf))", decisions=many)
    assert found == [["drafted by recycle and suffix", 2], ["another; why", 1], ["no reason was given", 1]]
    assert sum(count for _, count in found) == len(many)


def test_tokens_a_second_are_those_of_the_last_seconds() -> None:
    looks = [{"at": 1000 * second, "tokens": tokens} for second, tokens in enumerate((0, 500, 510, 520, 530))]
    assert value("rateOf(looks)", looks=looks) == 10
    assert value("rateOf(looks)", looks=looks[:1]) == 0
    assert value("rateOf(looks)", looks=[looks[1], {"at": 2000, "tokens": 0}]) == 0


def test_curves_are_in_plain_forwards() -> None:
    curves = value("curvesOf(ms)", ms={"576": {"1": 10, "4": 25}, "192": {"8": 32, "1": 8, "2": 12}})
    assert curves == [
        {"depth": 192, "single": 8, "points": [[1, 1], [2, 1.5], [8, 4]]},
        {"depth": 576, "single": 10, "points": [[1, 1], [4, 2.5]]},
    ]
    for depth, nearest in ((10, 192), (400, 576), (None, 192)):
        assert value("nearestCurve(curves, depth).depth", curves=curves, depth=depth) == nearest
    for nothing in ({}, None, {"192": {"1": 0}}):
        assert value("curvesOf(ms)", ms=nothing) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (4, "A draft of 3 pays from 1.5 accepted tokens on (50 %)."),
        (2, "A draft of 1 does not pay even if all of it is accepted."),
        (1, "That is plain decoding."),
        (3, "has not been measured at this depth."),
    ],
)
def test_the_break_even_in_words(rows: int, words: str) -> None:
    main = {"depth": 192, "single": 8, "points": [[1, 1], [2, 2.1], [4, 2.5]]}
    assert words in value("costWords(main, new Map(), rows)", main=main, rows=rows)


def test_what_drafts_brought_is_of_rounds_with_one_request_and_no_prompt() -> None:
    shared = {**DECISION, "requests": DECISION["requests"] * 2}
    decisions = [DECISION, {**DECISION, "rows": 68}, shared, PLAIN]
    found = value("[...broughtBy(decisions.map(roundOf))]", decisions=decisions)
    assert found == [[4, {"rounds": 1, "tokens": 3}]]
