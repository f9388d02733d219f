from __future__ import annotations

import io
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from chat_doubles import chat_with, notes, speaker
from foredraft.cli.chat_turn import Chat
from foredraft.cli.interrupt import CtrlC
from foredraft.errors import BackendError, HostLostError
from foredraft.testing import FakeModel
from foredraft.types import FinishReason, Logits, Rows


def interrupting(at: str, *, raises: bool = False) -> FakeModel:
    """A model that is interrupted when it has said `at`, once."""
    left = [True]

    def interrupt() -> None:
        left.clear()
        if raises:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    def before(said: str) -> None:
        if said == at and left:
            interrupt()

    return speaker("Hello, world!", before=before)


def said(chat: Chat) -> str:
    return chat.printer._out.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_turn_shows_and_keeps_the_answer() -> None:
    chat = chat_with(speaker("Hello!"), system="Be brief.")
    chat.ask("Hi")
    assert said(chat) == "Hello!\n"
    assert chat.conversation.messages[1:] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
    ]
    assert "7 tokens" in notes(chat)
    assert "exact" in notes(chat)


def test_the_next_turn_computes_only_what_is_new() -> None:
    chat = chat_with(speaker("Hello!"))
    chat.ask("Hi")
    chat.ask("Hi")
    assert chat.totals.last is not None
    assert chat.totals.last.usage.cached_tokens == len("user: Hi\nassistant: Hello!")


def test_legend_is_shown_once() -> None:
    chat = chat_with(speaker("Hello, hello, hello, hello, hello, hello, hello!"))
    chat.printer._colours = "standard"
    chat.engine.set_speculation("ngram-simple:n=3")
    for _ in range(3):
        chat.ask("Hi")
    assert notes(chat).count("■ ngram-simple") == 1


# --- Ctrl-C --------------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said() -> None:
    chat = chat_with(interrupting("Hello"))
    chat.ask("Hi")
    # The round that Ctrl-C fell into is finished: its token is the last.
    assert chat.conversation.messages[-1] == {"role": "assistant", "content": "Hello,"}
    assert said(chat) == "Hello,\n"
    assert "stopped · " in notes(chat)
    assert chat.totals.stopped == 1
    assert chat.engine.idle


def test_after_ctrl_c_the_session_goes_on_from_the_partial_answer() -> None:
    chat = chat_with(interrupting("Hello"))
    chat.ask("Hi")
    chat.ask("Go on.")
    assert chat.conversation.messages[-1]["content"] == "Hello, world!"
    assert chat.totals.last is not None
    assert chat.totals.last.finish_reason is FinishReason.STOP
    assert chat.totals.last.usage.cached_tokens == len("user: Hi\nassistant: Hello")


def test_ctrl_c_in_the_middle_of_a_long_prompt_keeps_nothing() -> None:
    class Interrupted(FakeModel):
        def forward(self, batch: Sequence[Rows]) -> Logits:
            signal.raise_signal(signal.SIGINT)
            return super().forward(batch)

    model = Interrupted(max_batch=8)
    chat = chat_with(model)
    chat.ask("x" * 64)
    assert len(model.forwards) == 1
    assert chat.conversation.messages == []
    assert "the question is not kept" in notes(chat)
    assert chat.engine.idle


def test_an_interrupt_raised_anyway_stops_the_answer_too() -> None:
    chat = chat_with(interrupting("Hello", raises=True))
    chat.ask("Hi")
    assert chat.conversation.messages[-1] == {"role": "assistant", "content": "Hello"}
    assert chat.engine.idle


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_is_given_back(before: Any) -> None:
    outer = signal.signal(signal.SIGINT, before)  # a shell's background job ignores Ctrl-C
    try:
        with CtrlC() as ctrl_c:
            signal.raise_signal(signal.SIGINT)
            assert ctrl_c.pressed
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, outer)


def test_outside_the_main_thread_nothing_is_caught() -> None:
    chat = chat_with(speaker("Hello!"))
    thread = threading.Thread(target=chat.ask, args=("Hi",))
    thread.start()
    thread.join()
    assert chat.conversation.messages[-1]["content"] == "Hello!"


# --- what can go wrong ---------------------------------------------------------------------------------


def test_a_full_context_loses_nothing() -> None:
    chat = chat_with(speaker("Hello!", context=64))
    chat.ask("Hi")
    before = list(chat.conversation.messages)
    chat.ask("x" * 64)
    assert chat.conversation.messages == before
    assert "the context holds 64" in notes(chat)
    assert "/reset" in notes(chat)
    chat.conversation.reset()
    chat.ask("Hi")
    assert chat.conversation.messages == before


@pytest.mark.parametrize(("trained", "says"), [(64, False), (128, True)])
def test_a_larger_context_is_proposed_where_there_is_one(trained: int, says: bool) -> None:
    model = speaker("Hello!" * 20, context=64)
    model.info = replace(model.info, trained_context=trained)
    chat = chat_with(model)
    for question in ("x" * 64, "Hi"):  # too long; and answered until there is no room
        chat.ask(question)
        assert ("--ctx N" in notes(chat)) is says
        chat.notes.file = io.StringIO()


def test_an_answer_cut_off_by_the_context_says_so() -> None:
    chat = chat_with(speaker("Hello!" * 20, context=64))
    chat.ask("Hi")
    assert "context of 64 tokens is full" in notes(chat)
    assert chat.conversation.turns == 1
    assert chat.totals.last is not None
    assert chat.totals.last.finish_reason is FinishReason.LENGTH


def test_an_answer_cut_off_by_max_tokens_blames_nothing_else() -> None:
    chat = chat_with(speaker("Hello!" * 20), max_tokens=5)
    chat.ask("Hi")
    assert chat.conversation.messages[-1]["content"] == "Hello"
    assert "is full" not in notes(chat)


def test_a_failing_backend_does_not_end_the_session() -> None:
    fail = [True]

    def before(text: str) -> None:
        if text == "He" and fail[0]:
            fail[0] = False
            raise BackendError("the device is on fire")

    chat = chat_with(speaker("Hello!", before=before))
    chat.ask("Hi")
    assert "Error: Generation failed: the device is on fire" in notes(chat)
    chat.ask("Hi")
    assert chat.conversation.messages[-1]["content"] == "Hello!"


def losing(answer: str, at: str) -> FakeModel:
    """A model that loses a machine when it has said `at`."""

    def before(text: str) -> None:
        if text == at:
            raise HostLostError("The RPC host far:1 was lost: it closed the connection.")

    return speaker(answer, before=before)


def test_a_model_that_lost_a_machine_is_loaded_again_at_the_next_message() -> None:
    first = losing("Hello!", at="He")
    chat = chat_with(first, others={"split": speaker("Hello again!")})
    chat.model = "split"
    chat.ask("Hi")
    assert "Error: Generation failed: The RPC host far:1 was lost" in notes(chat)
    assert "The conversation is kept, and the model is loaded again at the next message." in notes(chat)
    assert chat.conversation.messages[-1]["content"] == "He"
    chat.ask("Go on.")
    assert first.closed
    assert "Loading the model again" in notes(chat)
    assert [message["content"] for message in chat.conversation.messages] == [
        "Hi",
        "He",
        "Go on.",
        "Hello again!",
    ]
    chat.ask("And on.")
    assert notes(chat).count("Loading the model again") == 1


def test_a_machine_that_is_still_away_is_said_and_tried_again() -> None:
    others: dict[str, FakeModel] = {}
    chat = chat_with(losing("Hello!", at="He"), others=others)
    chat.model = "split"
    chat.ask("Hi")
    before = list(chat.conversation.messages)
    for _ in range(2):
        chat.ask("Go on.")
        chat.retry()
    assert notes(chat).count("The next message tries to load the model again.") == 4
    assert chat.conversation.messages == before
    others["split"] = speaker("Hello again!")
    chat.retry()
    assert [message["content"] for message in chat.conversation.messages] == ["Hi", "Hello again!"]


def test_a_machine_that_is_lost_between_two_answers() -> None:
    """Not in a forward, but where the state of a sequence is saved."""

    model = speaker("Hello!")
    chat = chat_with(model, others={"split": speaker("Hello again!")})
    chat.model = "split"
    remove = chat.engine._scheduler.remove

    def lose(*arguments: Any, **options: Any) -> None:
        remove(*arguments, **options)
        raise HostLostError("The RPC host far:1 was lost: it closed the connection.")

    chat.engine._scheduler.remove = lose  # type: ignore[method-assign]
    chat.ask("Hi")
    assert "Error: The RPC host far:1 was lost" in notes(chat)
    chat.ask("Hi")
    assert chat.conversation.messages[-1]["content"] == "Hello again!"


def test_a_failure_in_the_engine_still_frees_the_request() -> None:
    def before(text: str) -> None:
        if text == "He":
            raise ZeroDivisionError

    chat = chat_with(speaker("Hello!", before=before))
    with pytest.raises(ZeroDivisionError):
        chat.ask("Hi")
    assert chat.engine.idle


def test_an_empty_answer_is_an_answer() -> None:
    chat = chat_with(speaker(""))
    chat.ask("Hi")
    assert chat.conversation.messages[-1] == {"role": "assistant", "content": ""}
