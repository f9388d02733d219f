"""Constraints are tried out in a child: a crash, a hang or a flood there costs one request an error."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from foredraft.errors import CapacityError, ChildDiedError, ChildError, ChildMemoryError, RequestError
from foredraft.isolation.pool import ChildPool
from foredraft.sampling import verdicts
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.grammar import MAX_CHAIN, Source
from foredraft.sampling.trial import STACK, try_out
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint

TOKENIZER = FakeTokenizer()
SCHEMA = Constraint("json_schema", "{}")
DEADLY = Source("json", json.dumps({"const": -(2**63)}))
"""Past the checks of a schema's numbers, llguidance itself dies of it."""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_verdicts", type(verdicts._verdicts)())


def compiled(grammar: str) -> None:
    compile_constraint(Constraint("grammar", grammar), TOKENIZER)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls to a child."""
    calls: list[tuple[Any, ...]] = []
    call = verdicts._pool.call

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return call(*args, **options)

    monkeypatch.setattr(verdicts._pool, "call", counting)
    return calls


def test_a_crash_of_the_library_is_an_error_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    for _ in range(2):
        with pytest.raises(RequestError, match=r"crashes on it\. Its process ended: signal 11") as caught:
            verdicts.check(SCHEMA, DEADLY, 300)
        assert "simpler" in str(caught.value.hint)
    assert len(calls) == 1
    verdicts.check(SCHEMA, Source("json", "{}"), 300)


def test_what_takes_too_long_is_an_error_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    monkeypatch.setattr(verdicts, "SECONDS", 0.05)
    for _ in range(2):
        with pytest.raises(RequestError, match=r"too complex\. It takes longer than 0\.05 s"):
            verdicts.check(SCHEMA, Source("regex", "(a{1000}){1000}"), 300)
    assert len(calls) == 2


def test_what_needs_too_much_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChildPool(memory=64 << 20) as pool:
        monkeypatch.setattr(verdicts, "_pool", pool)
        monkeypatch.setattr(verdicts, "SECONDS", 60.0)
        with pytest.raises(RequestError, match=r"memory|crashes"):
            verdicts.check(SCHEMA, Source("regex", "(a{1000}){1000}"), 300)


def killed() -> ChildDiedError:
    error = ChildDiedError("Its process ended: signal 9, SIGKILL.")
    error.transient = True
    return error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (killed(), CapacityError),
        (ChildMemoryError("It needs more than 512 MB of memory."), RequestError),
        (ChildError("A child process could not be started: full"), ChildError),
    ],
)
def test_what_the_machine_may_have_done_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, error: ChildError, raised: type[Exception]
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(verdicts._pool, "call", fail)
        with pytest.raises(raised, match=error.message):
            verdicts.check(SCHEMA, Source("regex", "killed"), 300)
    verdicts.check(SCHEMA, Source("regex", "killed"), 300)


def test_no_free_child_is_no_fault_of_the_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*args: Any, **options: Any) -> Any:
        raise CapacityError("All child processes for checking requests are busy.")

    monkeypatch.setattr(verdicts._pool, "call", busy)
    with pytest.raises(CapacityError):
        verdicts.check(SCHEMA, Source("json", "{}"), 300)
    verdicts.get_ready()


def test_a_constraint_is_tried_out_once_for_all_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    for size in (258, 260, 300):
        tokenizer = FakeTokenizer(size)
        compile_constraint(Constraint("regex", "[ab]+c"), tokenizer)
        compile_constraint(Constraint("grammar", f'start: "a" <[{size - 1}]>'), tokenizer)
    assert len(calls) == 1 + 3, "a grammar that names tokens: once for each size"


def test_few_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "REMEMBERED", 4)
    for number in range(10):
        verdicts.check(SCHEMA, Source("regex", f"a{number}"), 300)
    assert len(verdicts._verdicts) == 4


def test_many_threads_may_ask() -> None:
    failed: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            verdicts.check(SCHEMA, Source("regex", f"b{number % 4}"), 300)
            with pytest.raises(RequestError):
                verdicts.check(SCHEMA, Source("regex", f"({number % 3}"), 300)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# --- chains and alternatives ---------------------------------------------------------------------------


def lark_chain(length: int) -> str:
    rules = [f"a{i}: a{i + 1}" for i in range(length)]
    return "\n".join(["start: a0", *rules, f'a{length}: "x"'])


def gbnf_chain(length: int) -> str:
    rules = [f"a{i} ::= a{i + 1}" for i in range(length)]
    return "\n".join(["root ::= a0", *rules, f'a{length} ::= "x" root | "y"'])


@pytest.mark.parametrize("chain", [lark_chain, gbnf_chain])
def test_rules_that_lead_from_one_to_the_next_are_bounded(chain: Any) -> None:
    compiled(chain(MAX_CHAIN - 10))
    for length in (MAX_CHAIN + 1, 2800, 3600):
        with pytest.raises(RequestError, match=f"more than {MAX_CHAIN} of its rules"):
            compiled(chain(length))


def test_many_rules_side_by_side_are_no_chain() -> None:
    names = [f"a{i}" for i in range(600)]
    rules = [f'{name}: "{name}" end' for name in names]
    compiled("\n".join([f"start: {' | '.join(names)}", *rules, 'end: "." | ";" end']))


def test_chains_in_strings_patterns_and_notes_are_none() -> None:
    words = [f'w{i}: "w{i + 1}" /w{i + 2}/ // w{i + 3}' for i in range(400)]
    compiled("\n".join(["start: w1", *words]))


def test_a_trial_has_a_stack_of_its_own() -> None:
    """Smaller than the 8 MB of a process's first thread, in which a chain of 1,000 has room."""
    assert STACK == 1 << 20
    assert try_out("lark", lark_chain(100), 0) == ""
    with pytest.raises(RequestError, match="crashes"):
        verdicts.check(Constraint("grammar", "x"), Source("lark", lark_chain(1000)), 300)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + " | ".join(f'"a{i}" b' for i in range(5000)) + '\nb ::= "c" | "d" b',
        "start: " + " ".join(f'"{i}"?' for i in range(6000)),
    ],
    ids=["5,000 alternatives", "6,000 optionals"],
)
def test_too_many_at_a_time_is_refused_with_the_limit(grammar: str) -> None:
    with pytest.raises(RequestError, match="items; max is 2000") as caught:
        compiled(grammar)
    assert "levels or alternatives" in str(caught.value.hint)


def test_schemas_within_a_grammar_are_prepared() -> None:
    compiled('start: "x" %json {"type": "string", "format": "path", "propertyNames": {"type": "string"}} "y"')
    with pytest.raises(RequestError, match="represented exactly"):
        compiled('start: %json {"const": -9223372036854775808}')
    with pytest.raises(RequestError, match="uniqueItems"):
        compiled('start: %json {"type": "array", "uniqueItems": true}')
