"""A model's chat template. It is rendered in a child process with limits."""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any

from foredraft.errors import (
    ChildDiedError,
    ChildMemoryError,
    ChildOutputError,
    ChildTimeoutError,
    RequestError,
)
from foredraft.isolation.pool import ChildPool
from foredraft.templates.thoughts import ThoughtForm
from foredraft.templates.traits import TemplateTraits
from foredraft.types import Message

SECONDS = 2.0
"""Seconds to render one conversation, which normally takes a millisecond. A slower template is stopped."""

MEMORY = 256 << 20
OUTPUT = 256 << 20

_KEPT_CHARACTERS = 1 << 22
_BOUNDS = (ChildDiedError, ChildMemoryError, ChildOutputError, ChildTimeoutError)
_MODULE = "foredraft.templates.child"
_USELESS = (
    "Use /v1/completions, 'foredraft run --raw' or plain text in Python, or another file of this model."
)

logger = logging.getLogger(__name__)


class ChatTemplate:
    """A chat template. `source` None: the model has none, and `render` raises. `tokens`: the texts of special
    tokens by the names that templates use, such as `bos_token`.

    Any thread may render. Recent results are cached.
    """

    def __init__(self, source: str | None, **tokens: str) -> None:
        self._source = source
        self._tokens = tokens
        self._lock = Lock()
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._kept_characters = 0
        self._traits: TemplateTraits | None = None
        self._timeless = "strftime_now" not in (source or "")

    @property
    def traits(self) -> TemplateTraits:
        """The template's abilities. An unusable template has an `error`; nothing is raised here."""
        if self._traits is not None:
            return self._traits
        found, lasting = self._examined()
        if lasting:  # cached as long as the model is loaded
            self._traits = found
        return found

    def _examined(self) -> tuple[TemplateTraits, bool]:
        """The traits, and whether they are final: one timeout must not decide about a template."""
        if self._source is None:
            return TemplateTraits(), True
        for last in (False, True):
            try:
                found = _children().call(f"{_MODULE}:examine", self._source, self._tokens, seconds=SECONDS)
                return traits_of(found), True
            except _BOUNDS as failed:
                if last:
                    return TemplateTraits(error=failed.message), not failed.transient
        raise AssertionError

    def render(self, messages: Sequence[Message], **variables: object) -> str:
        """Render the prompt. Raises RequestError if there is no template, it is unusable, rejects the
        messages, or exceeds its time or memory limit.
        """
        if self._source is None:
            raise RequestError(
                "This model has no chat template, so it cannot take messages.",
                hint="Use plain text instead: 'foredraft run --raw', or generate('text') in Python.",
            )
        if not messages:
            raise RequestError("There are no messages.", hint="Send at least one message.")
        if self.traits.error is not None:
            raise RequestError(
                f"The model's chat template cannot be used. {self.traits.error}", hint=_USELESS
            )
        # As in transformers, `tools` and `documents` are defined as None: templates test for that.
        given = {"tools": None, "documents": None, **self._tokens, **variables, "messages": messages}
        return self._render(plain_data(given))

    def _render(self, variables: Any) -> str:
        key = hashlib.sha256(pickle.dumps(variables)).digest() if self._timeless else None
        text = self._recalled(key)
        if text is not None:
            return text
        try:
            text = _children().call(f"{_MODULE}:render", self._source, variables, seconds=SECONDS)
        except _BOUNDS as error:
            logger.warning("A chat template was stopped: %s", error.message)
            raise RequestError(
                f"The model's chat template exceeded its limits with these messages. {error.message}",
                hint=_USELESS,
            ) from None
        self._keep(key, str(text))
        return str(text)

    def _recalled(self, key: bytes | None) -> str | None:
        with self._lock:
            if key is None or key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def _keep(self, key: bytes | None, text: str) -> None:
        with self._lock:
            if key is None or key in self._kept or len(text) > _KEPT_CHARACTERS:
                return
            self._kept[key] = text
            self._kept_characters += len(text)
            while self._kept_characters > _KEPT_CHARACTERS:
                _, oldest = self._kept.popitem(last=False)
                self._kept_characters -= len(oldest)


def traits_of(found: Mapping[str, Any]) -> TemplateTraits:
    """The traits that `child.examine` found."""
    thought = found.get("thought")
    return TemplateTraits(**{**found, "thought": None if thought is None else ThoughtForm(**thought)})


@cache
def _children() -> ChildPool:
    return ChildPool(memory=MEMORY, output=OUTPUT)


def plain_data(value: object) -> Any:
    """Copy a value using JSON's types only, so that a template gets no object with methods of its own.

    Raises RequestError for any other type.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise RequestError("The messages or the tools are nested too deeply.") from None


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # the plain text, also of a subclass
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item) for item in value]
    raise RequestError(
        f"A message or a variable of the chat template contains a {type(value).__name__}.",
        hint="Use only text, numbers, true, false, None, lists and mappings.",
    )
