from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

import gguf_factory
from chat_doubles import chat_with, notes, speaker
from foredraft.cli.chat_commands import COMMANDS, is_command, run_command
from foredraft.cli.chat_session import read_messages
from foredraft.cli.chat_turn import Chat
from foredraft.errors import HostLostError, RequestError
from foredraft.testing import FakeModel, FakeVision


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
    assert f"/{name} takes no argument" in notes(chat)
    assert chat.conversation.turns == 1
    assert not chat.leaving


@pytest.mark.parametrize("line", ["/quit", "/exit", "/EXIT"])
def test_quit_and_exit_leave(line: str) -> None:
    assert after(line).leaving


# --- another answer, another temperature, another model ------------------------------------------------


def drawn(chat: Chat) -> str:
    return str(chat.conversation.messages[-1]["content"])


def test_retry_answers_the_last_question_again() -> None:
    chat = after("/temp 2", "Hi", chat=chat_with(FakeModel(), seed=1, max_tokens=12))
    first = drawn(chat)
    after("/retry", chat=chat)
    assert drawn(chat) != first, "a seed counts up: the same answer is no other"
    assert [message["content"] for message in chat.conversation.messages[:-1]] == ["Hi"]
    second = drawn(chat)
    after("/reset", "Hi", chat=chat)
    assert drawn(chat) == first, "the next question has the seed itself"
    after("/retry", chat=chat)
    assert drawn(chat) == second


def test_retry_needs_a_question() -> None:
    assert "There is no question yet." in notes(after("/temp 1", "/retry"))
    chat = after("Hi", "/retry")
    assert chat.conversation.turns == 1, "at temperature 0, too: the last answer may have been broken off"


def test_an_answer_that_fails_when_tried_again_leaves_the_old_one() -> None:
    chat = after("/temp 1", "Hi", chat=chat_with(speaker("Hello!")))
    before = list(chat.conversation.messages)
    chat.engine.close()
    after("/retry", chat=chat)
    assert chat.conversation.messages == before
    assert "This engine is closed" in notes(chat)


def test_the_temperature_is_shown_and_set() -> None:
    chat = after("/temp", "/temp 0.4")
    assert "Temperature: 0, always the likeliest token" in notes(chat)
    assert "Temperature: 0.4" in notes(chat)
    assert chat.params.temperature == 0.4
    after("/temp -", chat=chat)
    assert chat.params.temperature == 0.7


@pytest.mark.parametrize("value", ["hot", "-1", "nan"])
def test_a_temperature_that_is_none(value: str) -> None:
    chat = after(f"/temp {value}")
    assert f"Error: {value} is not a finite number, at least 0." in notes(chat)
    assert chat.params.temperature == 0


def test_another_model_goes_on_with_the_conversation() -> None:
    old = speaker("Hello!")
    chat = chat_with(old, others={"parrot": speaker("Squawk!")})
    after("Hi", "/speculate ngram-simple:n=4", "/model parrot", "Hi", "/model", chat=chat)
    assert old.closed
    assert [message["content"] for message in chat.conversation.messages] == ["Hi", "Hello!", "Hi", "Squawk!"]
    assert notes(chat).count("fake · context 4,096") == 2
    assert chat.totals.last is not None
    assert chat.totals.last.speculation.configured == "ngram-simple:n=4"


def test_another_model_is_the_one_that_is_loaded_again() -> None:
    def before(text: str) -> None:
        if text == "Squ":
            raise HostLostError("The RPC host far:1 was lost.")

    others = {"parrot": speaker("Squawk!", before=before)}
    chat = chat_with(speaker("Hello!"), others=others)
    after("/model parrot", "Hi", chat=chat)
    others["parrot"] = speaker("Squawk!")
    after("/speculate ngram-simple:n=4", "Hi", chat=chat)
    assert chat.conversation.messages[-1]["content"] == "Squawk!"
    assert notes(chat).count("Loading the model again") == 1
    assert chat.totals.last is not None
    assert chat.totals.last.speculation.configured == "ngram-simple:n=4"


def test_a_model_that_is_not_there_leaves_the_old_one() -> None:
    chat = after("/model nonesuch", "Hi")
    assert "Error: There is no model nonesuch." in notes(chat)
    assert chat.conversation.turns == 1


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


@pytest.mark.parametrize("answer", [True, False])
def test_saving_asks_before_it_overwrites(tmp_path: Path, answer: bool) -> None:
    path, asked = tmp_path / "chat.json", []

    def confirm(question: str) -> bool:
        asked.append(question)
        return answer

    chat = chat_with(speaker("Hello!"))
    chat.confirm = confirm
    after("Hi", f"/save {path}", chat=chat)
    assert not asked
    after("Hi", f"/save {path}", chat=chat)
    assert asked == [f"{path} exists. Overwrite it?"]
    assert len(read_messages(path)) == (4 if answer else 2)
    assert ("Not saved." in notes(chat)) is not answer


def test_where_nobody_can_be_asked_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = after("Hi", f"/save {path}", "Hi", f"/save {path}")
    assert "There is no terminal to ask on." in notes(chat)
    assert len(read_messages(path)) == 2


def test_the_home_directory_may_be_written_as_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    after("/save ~/chat.json")
    assert read_messages(tmp_path / "chat.json") == []


def test_a_bad_file_is_reported_and_the_session_goes_on(tmp_path: Path) -> None:
    chat = after("Hi", f"/load {tmp_path / 'missing.json'}", f"/save {tmp_path}", "Hi")
    assert notes(chat).count("Error: ") == 2
    assert chat.conversation.turns == 2


def test_saving_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    chat = after("Hi", f"/save {tmp_path}/slip/chat.json")
    assert f"There is no folder {tmp_path}/slip." in notes(chat)
    assert not (tmp_path / "slip").exists()


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


def test_a_drafter_that_cannot_be_used_is_noted(tmp_path: Path) -> None:
    path = gguf_factory.not_gguf(tmp_path / "draft.gguf")
    chat = after(f"/speculate draft-model:model={path}", "Hi")
    assert "Note: drafter draft-model" in notes(chat)
    assert chat.conversation.turns == 1


def test_a_draft_model_that_is_not_there_leaves_the_old_setting() -> None:
    chat = after("/speculate draft-model:model=/nonexistent.gguf", "/speculate")
    assert "Error: The draft model cannot be used: There is no file /nonexistent.gguf." in notes(chat)
    assert "Speculation: off" in notes(chat)


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


# --- images --------------------------------------------------------------------------------------------


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "a cat.png"
    Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return path


def seeing() -> Chat:
    model = speaker("A cat.")
    model.vision = FakeVision()
    return chat_with(model, max_tokens=8)


def test_an_image_is_shown_with_the_next_question_and_stays_in_the_conversation(
    cat: Path, tmp_path: Path
) -> None:
    chat = after(f"/image {cat}", "/image", "What is it?", "/image", "And now?", chat=seeing())
    assert notes(chat).count("1 image is shown with the next question.") == 2
    assert "No image is shown with the next question." in notes(chat)
    (kinds, later) = [
        [part["type"] for part in message["content"]] if isinstance(message["content"], list) else "text"
        for message in chat.conversation.messages
        if message["role"] == "user"
    ]
    assert kinds == ["image_url", "text"]
    assert later == "text"
    assert isinstance(chat.engine.model, FakeModel)
    assert sum(len(rows.images) for batch in chat.engine.model.forwards for rows in batch) == 1  # then cached
    after(f"/save {tmp_path / 'c.json'}", chat=chat)
    assert read_messages(tmp_path / "c.json") == chat.conversation.messages
    after("/retry", chat=chat)
    assert len(chat.conversation.messages) == 4


def test_images_are_taken_back_and_wrong_ones_refused(cat: Path, tmp_path: Path) -> None:
    chat = after(f"/image {cat}", f'/image "{cat}"', "/image -", chat=seeing())
    assert "2 images are shown" in notes(chat)
    assert chat.conversation.images == []
    (tmp_path / "text.png").write_text("hello")
    after(f"/image {tmp_path / 'text.png'}", f"/image {tmp_path / 'none.png'}", chat=chat)
    assert "is not a PNG, JPEG" in notes(chat)
    assert "none.png cannot be read" in notes(chat)
    assert chat.conversation.images == []
    assert "This model does not see images." in notes(after(f"/image {cat}"))


@pytest.mark.parametrize(
    "content", [[{"type": "image_url"}], [{"type": "image_url", "image_url": "x"}], [3], {"type": "text"}]
)
def test_saved_content_that_is_none_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([{"role": "user", "content": content}]))
    with pytest.raises(RequestError, match="not text, or text and images"):
        read_messages(path)
