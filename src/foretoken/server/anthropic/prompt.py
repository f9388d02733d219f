"""A conversation in Anthropic's form as the model's tokens."""

from __future__ import annotations

from foretoken.engine.prompt import encode_chat
from foretoken.protocols import Tokenizer
from foretoken.server.anthropic.schemas import CountTokensRequest, text_of


def encode_messages(tokenizer: Tokenizer, body: CountTokensRequest) -> list[int]:
    """The token ids of the prompt. A last message of the assistant is the beginning of the answer.

    Raises RequestError for what the model's template rejects.
    """
    turns = as_turns(body)
    if turns[-1]["role"] != "assistant":
        return encode_chat(tokenizer, turns)
    begun = turns.pop()["content"]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True) + begun
    # In one piece: a tokenizer may encode the beginning of a text in another way than its middle.
    return tokenizer.encode(text, special=True, add_bos=True)


def as_turns(body: CountTokensRequest) -> list[dict[str, str]]:
    """Messages as chat templates know them: the system prompt first, neighbours of one role as one message.

    Anthropic's API combines such neighbours too, and many templates accept alternating roles only.
    """
    given = [("system", body.system)] if body.system else []
    turns: list[dict[str, str]] = []
    for role, content in (*given, *((turn.role, turn.content) for turn in body.messages)):
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += "\n" + text_of(content)
        else:
            turns.append({"role": role, "content": text_of(content)})
    return turns
