"""Prompts, predictions and sampling settings: what is accepted, and what the errors say."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.engine.prompt import check_tokens, encode_prediction, encode_prompt
from foredraft.errors import ContextLengthError, RequestError
from foredraft.testing import FakeModel, FakeTokenizer
from foredraft.types import Message

INFO = FakeModel(258, context_length=4096).info


class RecordingTokenizer(FakeTokenizer):
    """Keeps the messages that reached the chat template."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        self.messages = list(messages)
        return super().apply_chat_template(messages, add_generation_prompt=add_generation_prompt)


def messages_for_template(*messages: Message) -> list[Message]:
    tokenizer = RecordingTokenizer()
    encode_prompt(tokenizer, messages)
    return tokenizer.messages


def text_part(text: object, kind: object = "text") -> dict[str, object]:
    return {"type": kind, "text": text}


CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


# --- prompts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        "abc",
        [97, 98, 99],
        (97, 98, 99),
        range(97, 100),
        np.array([97, 98, 99]),
        array("i", [97, 98, 99]),
        [np.int32(97), 98, np.uint8(99)],
    ],
)
def test_text_and_token_ids(prompt: object) -> None:
    tokens = encode_prompt(FakeTokenizer(), prompt).tokens
    assert tokens == [97, 98, 99]
    assert {type(token) for token in tokens} == {int}


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (None, "is None"),
        (5, "is an int"),
        (1.5, "is a float"),
        (b"abc", "is a bytes"),
        (bytearray(b"abc"), "is a bytearray"),
        (memoryview(b"abc"), "is a memoryview"),
        ({"role": "user", "content": "a"}, "single dict"),
        ({97, 98}, "is a set"),
        (iter([97]), "iterator"),
        (np.array(5), "is a ndarray"),
        (np.array([[97]]), "is a ndarray"),
        ([1.0, 2], "a float in it"),
        (np.array([1.0]), "a float64 in it"),
        ([1, "b"], "a str in it"),
        ([True], "a bool in it"),
        ([None], "with None in it"),
        ([b"abc"], "a bytes in it"),
        ([1, {"role": "user", "content": "a"}], "mixes token ids and messages"),
    ],
)
def test_what_is_not_a_prompt(prompt: object, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        encode_prompt(FakeTokenizer(), prompt)
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc")])
def test_bytes_are_to_be_decoded(data: object) -> None:
    for encode in (
        lambda: encode_prompt(FakeTokenizer(), data),
        lambda: encode_prediction(FakeTokenizer(), data, INFO),
    ):
        with pytest.raises(RequestError) as caught:
            encode()
        assert "Decode it first" in (caught.value.hint or "")


# --- messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_roles_and_other_keys_pass_through(role: str) -> None:
    message = {"role": role, "content": "hi", "name": "n", "tool_call_id": "7"}
    assert messages_for_template(message) == [message]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        ([text_part("hi")], "hi"),
        ([text_part("hi", "input_text")], "hi"),
        ((text_part("one"), text_part("two", "input_text")), "one\ntwo"),
        ([text_part("")], ""),
    ],
)
def test_content_is_one_string_for_the_template(content: object, text: str) -> None:
    given = {"role": "tool", "content": content, "tool_call_id": "7"}
    assert messages_for_template(given) == [{"role": "tool", "content": text, "tool_call_id": "7"}]
    assert given["content"] is content, "the caller's message stays as it was"


@pytest.mark.parametrize("silent", [{}, {"content": None}, {"content": []}])
def test_an_assistant_that_only_calls_tools_needs_no_content(silent: dict[str, object]) -> None:
    given = {"role": "assistant", "tool_calls": CALLS, **silent}
    assert messages_for_template(given) == [{"role": "assistant", "content": "", "tool_calls": CALLS}]


@pytest.mark.parametrize("silent", [{}, {"content": None}, {"content": []}])
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "system"},
        {"role": "assistant"},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "tool_calls": None},
        {"role": "user", "tool_calls": CALLS},
    ],
)
def test_every_other_message_needs_content(message: dict[str, object], silent: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=f"The {message['role']} message has no content") as caught:
        messages_for_template({**message, **silent})
    assert "tool_calls" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", ["input_image", "input_audio", "file", "refusal", ""])
def test_parts_that_are_not_text_are_refused_by_type(kind: str) -> None:
    with pytest.raises(RequestError, match=f"The user message .* of type '{kind}'") as caught:
        messages_for_template({"role": "user", "content": [text_part("see:"), {"type": kind, kind: {}}]})
    assert caught.value.hint


def test_an_image_without_a_url_is_refused() -> None:
    with pytest.raises(RequestError, match="An image of the user message has no url"):
        messages_for_template({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (5, "has an int as its content"),
        (b"hi", "has a bytes as its content"),
        ({"type": "text", "text": "hi"}, "has a dict as its content"),
        (["hi"], "part without a type"),
        ([None], "part without a type"),
        ([{"text": "hi"}], "part without a type"),
        ([text_part("hi", 5)], "part without a type"),
        ([text_part(None)], "of type 'text' without text"),
        ([{"type": "input_text"}], "of type 'input_text' without text"),
    ],
)
def test_malformed_content(content: object, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        messages_for_template({"role": "user", "content": content})
    assert caught.value.hint


@pytest.mark.parametrize("message", [{}, {"content": "hi"}, {"role": None}, {"role": ""}, {"role": 5}])
def test_a_message_needs_a_role(message: Message) -> None:
    with pytest.raises(RequestError, match="no role"):
        messages_for_template(message)


# --- token ids -----------------------------------------------------------------------------------------


def test_tokens_that_fit() -> None:
    check_tokens([0, 257], FakeModel(context_length=3).info)


@pytest.mark.parametrize("tokens", [[-1], [258], [97, 10**30]])
def test_tokens_outside_the_vocabulary(tokens: list[int]) -> None:
    with pytest.raises(RequestError, match="The prompt has a token id outside the vocabulary"):
        check_tokens(tokens, FakeModel().info)
    with pytest.raises(RequestError, match="The prediction has a token id outside the vocabulary"):
        encode_prediction(FakeTokenizer(), tokens, INFO)


def test_a_prompt_needs_a_token_and_leaves_room_for_one() -> None:
    with pytest.raises(RequestError, match="empty"):
        check_tokens([], FakeModel().info)
    with pytest.raises(ContextLengthError, match="3 tokens; the context holds 3"):
        check_tokens([1, 2, 3], FakeModel(context_length=3).info)


LARGER = "Shorten the prompt, or load the model with a larger context (--ctx, context_length)"


def test_a_long_prompt_of_a_model_whose_positions_can_be_scaled() -> None:
    info = replace(FakeModel(context_length=3).info, trained_context=3, scalable=True)
    with pytest.raises(ContextLengthError) as caught:
        check_tokens([1, 2, 3], info)
    assert caught.value.hint == (
        "Shorten the prompt, or load the model with a larger context than it was trained for, by YaRN: "
        "--ctx N --rope-scaling yarn (context_length, rope_scaling)."
    )


@pytest.mark.parametrize(
    ("trained", "hint"),
    [
        (3, "Shorten the prompt: the model was not trained for a larger context."),
        (4, f"{LARGER}: it was trained for 4 tokens."),
        (0, f"{LARGER}."),
    ],
)
def test_what_to_do_about_a_long_prompt_is_what_the_model_allows(trained: int, hint: str) -> None:
    info = replace(FakeModel(context_length=3).info, trained_context=trained)
    with pytest.raises(ContextLengthError) as caught:
        check_tokens([1, 2, 3], info)
    assert caught.value.hint == hint


# --- predictions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prediction",
    [
        "a\nb",
        [97, 10, 98],
        np.array([97, 10, 98]),
        {"type": "content", "content": "a\nb"},
        {"type": "content", "content": [text_part("a"), text_part("b")]},
    ],
)
def test_a_prediction_is_text_token_ids_or_openais_object(prediction: object) -> None:
    tokens = encode_prediction(FakeTokenizer(), prediction, INFO)
    assert tokens == (97, 10, 98)
    assert {type(token) for token in tokens} == {int}


@pytest.mark.parametrize("prediction", ["", [], (), {"type": "content", "content": ""}])
def test_no_prediction(prediction: object) -> None:
    assert encode_prediction(FakeTokenizer(), prediction, INFO) == ()


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        (None, "is None"),
        (5, "is an int"),
        (True, "is a bool"),
        (["x"], "a str in it"),
        ([97, None], "None in it"),
        ([1.5], "a float in it"),
        ({"content": "a"}, "type None"),
        ({"type": "text", "content": "a"}, "type 'text'"),
        ({"type": "content"}, "None as its content"),
        ({"type": "content", "content": 5}, "an int as its content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "of type 'image_url'"),
    ],
)
def test_what_is_not_a_prediction(prediction: object, says: str) -> None:
    with pytest.raises(RequestError, match=f"The prediction .*{says}") as caught:
        encode_prediction(FakeTokenizer(), prediction, INFO)
    assert caught.value.hint


def test_a_prediction_is_no_longer_than_an_answer_can_be() -> None:
    info = FakeModel(258, context_length=3).info
    assert encode_prediction(FakeTokenizer(), "abc", info) == (97, 98, 99)
    for longer in ("abcd", [97] * 4):
        with pytest.raises(ContextLengthError, match="4 tokens; the context holds 3"):
            encode_prediction(FakeTokenizer(), longer, info)
