from __future__ import annotations

from pathlib import Path

import pytest

from chat_doubles import chat_with, notes, speaker
from foredraft.cli.chat_commands import COMMANDS, is_command, run_command
from foredraft.cli.chat_session import read_messages
from foredraft.cli.chat_turn import Chat


def after(*lines: str, chat: Chat | None = None) -> Chat:
    chat = chat or chat_with(speaker("Hello!"))
    for line in lines:
        if is_command(line):
            run_command(chat, line)
        else:
            chat.ask(line)
    return chat


def test_help_lists_every_command() -> None:
    listed = notes(after("/help"))
    for command in COMMANDS.values():
        assert command.usage in listed
        assert command.description in listed


def test_commands_are_found_in_any_case_and_with_any_space() -> None:
    assert notes(after("/HELP  ")) == notes(after("/help"))


@pytest.mark.parametrize(
    ("line", "meant"), [("/hlep", "/help"), ("/stat", "/stats"), ("/rest", "/reset"), ("/Quti", "/quit")]
)
def test_an_unknown_command_suggests_the_nearest(line: str, meant: str) -> None:
    chat = after(line)
    assert f"There is no command {line}." in notes(chat)
    assert f"Did you mean {meant}?" in notes(chat)
    assert not chat.leaving


@pytest.mark.parametrize("line", ["/", "/xyzzy", "/ /"])
def test_a_command_like_no_other_points_to_help(line: str) -> None:
    shown = notes(after(line))
    assert "Did you mean" not in shown
    assert "/help lists the commands" in shown


def test_a_space_before_the_slash_makes_it_text() -> None:
    assert is_command("/help")
    assert not is_command(" /help")


@pytest.mark.parametrize("name", ["save", "load"])
def test_a_missing_argument_is_named(name: str) -> None:
    assert f"Use: /{name} FILE" in notes(after(f"/{name}"))


@pytest.mark.parametrize("name", ["help", "reset", "stats", "quit"])
def test_a_superfluous_argument_is_refused(name: str) -> None:
    chat = after("Hi", f"/{name} now")
    assert f"/{name} takes nothing after it" in notes(chat)
    assert chat.conversation.turns == 1
    assert not chat.leaving


def test_quit_leaves() -> None:
    assert after("/quit").leaving


def test_reset_forgets_the_conversation() -> None:
    chat = after("Hi", "/system Be brief.", "/reset")
    assert chat.conversation.messages == [{"role": "system", "content": "Be brief."}]
    assert "the system message stays" in notes(chat)


def test_system_shows_sets_and_removes() -> None:
    chat = after("/system")
    assert "no system message" in notes(chat)
    after("/system  Be [brief]. ", chat=chat)
    assert chat.conversation.system == "Be [brief]."
    assert "System message: Be [brief]." in notes(after("/system", chat=chat))
    after("/system -", chat=chat)
    assert chat.conversation.system is None


# --- files ---------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "a chat.json"
    saved = after("Hi", f'/save "{path}"')
    assert read_messages(path) == saved.conversation.messages
    assert f"Saved 2 messages to {path}." in notes(saved)
    loaded = after(f"/load {path}")
    assert loaded.conversation.messages == saved.conversation.messages
    assert "Loaded 2 messages (no system message)" in notes(loaded)


def test_the_home_directory_may_be_written_as_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    after("/save ~/chat.json")
    assert read_messages(tmp_path / "chat.json") == []


def test_a_bad_file_is_reported_and_the_session_goes_on(tmp_path: Path) -> None:
    chat = after("Hi", f"/load {tmp_path / 'missing.json'}", f"/save {tmp_path}", "Hi")
    assert notes(chat).count("Error: ") == 2
    assert chat.conversation.turns == 2


# --- speculation ---------------------------------------------------------------------------------------


def test_speculation_is_switched_without_reloading_the_model() -> None:
    chat = chat_with(speaker("Hello, hello, hello, hello, hello, hello, hello!"))
    model = chat.engine.model
    after("Hi", "/speculate ngram-simple:n=3", "Hi", chat=chat)
    assert chat.totals.last is not None
    assert chat.totals.last.speculation.configured == "ngram-simple:n=3"
    assert chat.totals.last.speculation.drafters["ngram-simple"].accepted > 0
    assert "Speculation: ngram-simple:n=3" in notes(chat)
    assert chat.engine.model is model
    after("/speculate off", "Hi", chat=chat)
    assert chat.totals.last.speculation.reason == "speculation is turned off"


@pytest.mark.parametrize("spec", ["suffix:mx=3", "nonesuch", "off;suffix", "suffix:max=0"])
def test_a_bad_speculation_string_leaves_the_old_setting(spec: str) -> None:
    chat = after("/speculate ngram-simple:n=4", f"/speculate {spec}", "/speculate", "Hi")
    assert notes(chat).count("Error: ") == 1
    assert notes(chat).count("Speculation: ngram-simple:n=4") == 2
    assert chat.totals.last is not None
    assert chat.totals.last.speculation.configured == "ngram-simple:n=4"


def test_a_drafter_that_cannot_be_used_is_noted() -> None:
    chat = after("/speculate draft-model:model=/nonexistent.gguf", "Hi")
    assert "Note: drafter draft-model" in notes(chat)
    assert chat.conversation.turns == 1


# --- stats ---------------------------------------------------------------------------------------------


def test_stats_before_the_first_turn() -> None:
    assert "Nothing has been generated yet." in notes(after("/stats"))


def test_stats_after_some_turns() -> None:
    chat = after("/speculate ngram-simple:n=3", "Hi", "Hi", "/stats")
    shown = notes(chat)
    last = chat.totals.last
    assert last is not None
    assert last.usage.cached_tokens > 0
    for label in ("turns", "tokens/s", "drafter ngram-simple", "estimated speedup", "exact"):
        assert label in shown
    assert f"{last.usage.prompt_tokens} tokens, {last.usage.cached_tokens} of them cached" in shown
    assert f"{last.usage.prompt_tokens + last.usage.completion_tokens} of 4,096 tokens" in shown
