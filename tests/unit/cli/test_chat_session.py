from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.cli.chat_session import ROLES, Conversation, read_messages
from foredraft.errors import RequestError


def spoken(system: str | None = None) -> Conversation:
    conversation = Conversation(system)
    conversation.add_turn("Hello?", "Hi.")
    return conversation


def test_a_turn_adds_a_question_and_its_answer() -> None:
    conversation = spoken("Be brief.")
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    assert conversation.turns == 1


def test_asking_does_not_change_the_conversation() -> None:
    conversation = spoken()
    asked = conversation.asking("And?")
    assert asked == [*conversation.messages, {"role": "user", "content": "And?"}]
    assert len(conversation.messages) == 2


def test_the_system_message_can_be_set_replaced_and_removed() -> None:
    conversation = spoken()
    assert conversation.system is None
    for text in ("Be brief.", "Be long.", ""):
        conversation.system = text
        assert conversation.system == text
        assert conversation.messages[0] == {"role": "system", "content": text}
        assert len(conversation.messages) == 3
    conversation.system = None
    assert conversation.messages == spoken().messages


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_reset_keeps_only_the_system_message(system: str | None) -> None:
    conversation = spoken(system)
    conversation.reset()
    assert conversation.messages == Conversation(system).messages
    assert conversation.system == system


# --- the file ------------------------------------------------------------------------------------------


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    saved = spoken("Antworte auf Deutsch: ä, 😀.")
    saved.save(tmp_path / "chat.json")
    loaded = Conversation("something else")
    loaded.load(tmp_path / "chat.json")
    assert loaded.messages == saved.messages
    assert json.loads((tmp_path / "chat.json").read_text(encoding="utf-8")) == saved.messages


messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from(ROLES), "content": st.text()}), max_size=5)


@given(messages=messages)
def test_any_messages_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, messages: list[dict[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("chats") / "chat.json"
    conversation = Conversation()
    conversation.messages = messages
    conversation.save(path)
    assert read_messages(path) == messages


def test_a_saved_conversation_is_private_and_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    Conversation().save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    spoken().save(path)
    assert read_messages(path) == spoken().messages
    assert [file.name for file in tmp_path.iterdir()] == ["chat.json"]


def test_an_empty_file_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.touch()
    spoken().save(path)
    assert read_messages(path) == spoken().messages


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work", encoding="utf-8")
    with pytest.raises(RequestError, match="not a saved conversation"):
        spoken().save(path)
    assert path.read_text(encoding="utf-8") == "years of work"


@pytest.mark.parametrize("name", [".", "file/chat.json", "nul\0l", "n" * 300])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError):
        spoken().save(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b"[{]", "in line 1"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": []}', "holds an object, not a list"),
        (b"[1]", "entry 1 is not an object"),
        (b'[{"role": "user"}]', "entry 1 has the keys role"),
        (b"[{}]", "entry 1 has the keys none"),
        (b'[{"role": "user", "content": "", "name": "x"}]', "has the keys content, name, role"),
        (b'[{"role": "robot", "content": ""}]', 'role "robot"'),
        (b'[{"role": ["user"], "content": ""}]', "role"),
        (b'[{"role": "user", "content": ""}, {"role": "user", "content": 1}]', "content of entry 2"),
        (b'[{"role": "user", "content": "\\ud800"}]', "lone surrogate"),
    ],
)
def test_a_bad_file_is_refused_and_nothing_is_lost(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(content)
    conversation = spoken("Be brief.")
    with pytest.raises(RequestError, match="is not a saved conversation") as caught:
        conversation.load(path)
    assert problem in caught.value.message
    assert caught.value.hint
    assert conversation.messages == spoken("Be brief.").messages


@pytest.mark.parametrize("name", ["missing.json", ".", "nul\0l"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="Cannot read"):
        read_messages(tmp_path / name)
