"""A conversation: its messages, its turns and its file. Independent of engine and terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from foredraft.cli.values import is_utf8
from foredraft.errors import RequestError
from foredraft.files import write_output
from foredraft.types import Message

Content: TypeAlias = str | list[dict[str, Any]]
"""A message's text, or OpenAI's content parts: images as data URLs, and the text."""

REASONING = "reasoning_content"
"""The key of what the model thought before it answered, which only some messages have."""

ROLES = ("system", "developer", "user", "assistant", "tool")


class Conversation:
    """The messages so far, oldest first; the system message, if there is one, comes first."""

    def __init__(self, system: str | None = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.images: list[dict[str, Any]] = []
        """Images to show with the next question: content parts."""
        self.system = system

    @property
    def system(self) -> str | None:
        """The system message's text. Setting it keeps the other messages; None removes it."""
        first = self.messages[0] if self.messages else None
        return str(first["content"]) if first and first["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages if self.system is None else self.messages[1:]
        head = [] if text is None else [{"role": "system", "content": text}]
        self.messages = [*head, *rest]

    @property
    def turns(self) -> int:
        """The number of user messages."""
        return sum(message["role"] == "user" for message in self.messages)

    def with_images(self, question: str) -> Content:
        """The next question, with the images to show with it."""
        return [*self.images, {"type": "text", "text": question}] if self.images else question

    def asking(self, question: Content) -> list[Message]:
        """The messages to answer `question` from. The conversation itself is not changed."""
        return [*self.messages, {"role": "user", "content": question}]

    def add_turn(self, question: Content, answer: str, thought: str = "") -> None:
        """Add a question together with its answer, so that roles always alternate; its images were shown. The
        chat template decides what becomes of the thought.
        """
        self.images = []
        self.messages.append({"role": "user", "content": question})
        thoughts = {REASONING: thought} if thought else {}
        self.messages.append({"role": "assistant", "content": answer, **thoughts})

    def take_back(self) -> Content:
        """Remove the last question and everything after it; returns the question. Raises RequestError."""
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at]["role"] == "user":
                question: Content = self.messages[at]["content"]
                del self.messages[at:]
                return question
        raise RequestError("There is no question yet.")

    def reset(self) -> None:
        """Remove everything but the system message."""
        self.messages = self.messages[:1] if self.system is not None else []
        self.images = []

    def save(self, path: Path) -> None:
        """Write the messages as a JSON list of {role, content}, some with reasoning_content, atomically.

        Overwrites a saved conversation, but no other file. Raises RequestError.
        """
        text = json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n"
        try:
            if not path.parent.is_dir():
                raise RequestError(
                    f"There is no folder {path.parent}.", hint="Create it, or name another folder."
                )
            overwrites(path)
            write_output(path, text.encode("utf-8", errors="replace"), mode=0o600)
        except OSError as error:
            raise RequestError(f"Cannot write {path}: {error.strerror}.") from None
        except ValueError as error:  # a NUL in the file name
            raise RequestError(f"Cannot write {path}: {error}.") from None

    def load(self, path: Path) -> None:
        """Replace the messages by a saved conversation. Raises RequestError and then changes nothing."""
        self.messages = read_messages(path)


def read_messages(path: Path) -> list[dict[str, Any]]:
    """Read messages from a JSON list written by `Conversation.save` or another tool.

    Raises RequestError with the problem and its place.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise _not_messages(path, "it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise _not_messages(path, f"it is not JSON ({error.msg} in line {error.lineno})") from None
    except RecursionError:
        raise _not_messages(path, "it is nested too deeply") from None
    except ValueError as error:  # a NUL in the file name
        raise RequestError(f"Cannot read {path}: {error}.") from None
    if not isinstance(data, list):
        raise _not_messages(path, f"it holds {json_kind(data)}, not a list")
    return [_message(path, number, entry) for number, entry in enumerate(data, 1)]


def _message(path: Path, number: int, entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _not_messages(path, f"entry {number} is not an object")
    if set(entry) - {REASONING} != {"role", "content"}:
        keys = ", ".join(sorted(map(str, entry))) or "none"
        raise _not_messages(path, f"entry {number} has the keys {keys}")
    role, content = entry["role"], entry["content"]
    if role not in ROLES:
        raise _not_messages(
            path, f"entry {number} has the role {json.dumps(role)}, which is none of {', '.join(ROLES)}"
        )
    texts = [content] if isinstance(content, str) else _texts_of(content)
    if texts is None:
        raise _not_messages(path, f"the content of entry {number} is not text, or text and images")
    thought = entry.get(REASONING, "")
    if not isinstance(thought, str):
        raise _not_messages(path, f"the {REASONING} of entry {number} is not text")
    if not all(map(is_utf8, (*texts, thought))):
        raise _not_messages(path, f"the content of entry {number} holds half a character (a lone surrogate)")
    return {"role": role, "content": content, **({REASONING: thought} if thought else {})}


def _texts_of(content: object) -> list[str] | None:
    """The texts and addresses of content parts; None if they are none."""
    found: list[str] = []
    for part in content if isinstance(content, list) else [None]:
        if not isinstance(part, dict):
            return None
        kind = part.get("type")
        text = part.get("text") if kind == "text" else None
        if kind == "image_url" and isinstance(part.get("image_url"), dict):
            text = part["image_url"].get("url")
        if not isinstance(text, str):
            return None
        found.append(text)
    return found


def json_kind(value: object) -> str:
    """The JSON name of a value's type."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def overwrites(path: Path) -> bool:
    """Whether saving there would replace a saved conversation. Raises RequestError for any other file."""
    try:
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            return False
    except (OSError, ValueError):  # an impossible file name: writing reports it
        return False
    try:
        read_messages(path)
    except RequestError:
        raise RequestError(
            f"{path} exists and is not a saved conversation.", hint="Choose another file name."
        ) from None
    return True


def _not_messages(path: Path, problem: str) -> RequestError:
    return RequestError(
        f"{path} is not a saved conversation: {problem}.",
        hint='It should be a JSON list of {"role": …, "content": …} messages, as /save writes it.',
    )
