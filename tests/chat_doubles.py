"""A chat without weights: a model that says what it is told, and a session around it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Console

from foredraft import Engine
from foredraft.cli.chat_session import Conversation
from foredraft.cli.chat_turn import Chat
from foredraft.cli.render import StreamPrinter
from foredraft.cli.sampling import Sampling
from foredraft.config import Speculation
from foredraft.errors import ModelNotFoundError
from foredraft.testing import FakeModel
from foredraft.types import Logits

END = 256
CUE = b"assistant: "


def speaker(answer: str, *, before: Callable[[str], None] | None = None, context: int = 4096) -> FakeModel:
    """A model that answers every question with `answer`.

    `before` is called with what has been said, before every token of an answer.
    """

    def logits(prefix: Sequence[int]) -> Logits:
        said = bytes(token for token in prefix if token < END).rpartition(CUE)[2]
        if before is not None:
            before(said.decode())
        row = np.zeros(258, np.float32)
        row[answer.encode()[len(said)] if len(said) < len(answer.encode()) else END] = 1.0
        return row

    return FakeModel(logits=logits, context_length=context)


def chat_with(
    model: FakeModel,
    *,
    system: str | None = None,
    others: Mapping[str, FakeModel] | None = None,
    **said: float,
) -> Chat:
    """A session whose answers and notes can be read with `answers` and `notes`. `said` are sampling values,
    at temperature 0 if they do not say; `others` are models that can be changed to.
    """

    def load(named: str | None, speculation: Speculation) -> Engine:
        found = (others or {}).get(named or "")
        if found is None:
            raise ModelNotFoundError(f"There is no model {named}.")
        engine = Engine(found)
        engine.set_speculation(speculation)
        return engine

    return Chat(
        engine=Engine(model),
        conversation=Conversation(system),
        sampling=Sampling({"temperature": 0.0, **said}),
        printer=StreamPrinter(Console(file=io.StringIO(), highlight=False)),
        notes=Console(file=io.StringIO(), highlight=False, width=200),
        speculation="off",
        load=load,
    )


def notes(chat: Chat) -> str:
    """Everything said beside the answers."""
    assert isinstance(chat.notes.file, io.StringIO)
    return chat.notes.file.getvalue()
