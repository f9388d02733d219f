"""Calls whose markers are control tokens, which have no text: they are read where they stood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from foredraft import Engine, SamplingParams
from foredraft.server.openai.tool_use import tool_use
from foredraft.server.tools.deltas import Answer, Delta, collect
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import FakeModel, FakeTokenizer
from foredraft.types import Logits, TokenEvent
from tool_cases import called

MARK, END = 257, 256
CALL = 'f[ARGS]{"a": 1}'
TOOL = {"type": "function", "function": {"name": "f"}}


class Mistral(FakeTokenizer):
    """A vocabulary in which `[TOOL_CALLS]` is a control token."""

    chat_template = "{{ tools }}[TOOL_CALLS]name[ARGS]"
    template_traits = TemplateTraits(variables={"tools"})

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        if special and text == "[TOOL_CALLS]":
            return [MARK]
        return super().encode(text, special=special, add_bos=add_bos)


def answering(pieces: Sequence[str | int]) -> Engine:
    """An engine whose model writes these texts and tokens, and ends."""
    script = [token for piece in pieces for token in ([piece] if isinstance(piece, int) else piece.encode())]

    def logits(prefix: Sequence[int]) -> Logits:
        row = np.zeros(258, np.float32)
        row[[*script, END][min(len(prefix) - 1, len(script))]] = 9.0
        return row

    model = FakeModel(logits=logits)
    model.tokenizer = Mistral()
    return Engine(model)


def read(pieces: Sequence[str | int], **options: Any) -> tuple[Answer, list[list[Delta]]]:
    """The answer, and what each of the engine's events gave of it."""
    engine = answering(pieces)
    reader = tool_use(engine.model.tokenizer, [TOOL], "auto", parallel=True).reader()
    assert reader is not None
    given = [
        reader.read(event) if isinstance(event, TokenEvent) else reader.end(event.text)
        for event in engine.stream([65], params=SamplingParams(max_tokens=200, **options))
    ]
    return collect(delta for deltas in given for delta in deltas), given


@pytest.mark.parametrize(
    ("pieces", "text", "calls"),
    [
        (["Let me look.", MARK, CALL], "Let me look.", 1),
        (["Let me look. STO", MARK, CALL], "Let me look. STO", 1),
        (["STO", MARK, CALL, MARK, CALL], "STO", 2),
        ([MARK, 'f[ARGS]{"a": 1}STO', MARK, CALL], "STO", 2),
        (["ST", MARK, CALL, "STOP", MARK, CALL], "ST", 1),
        (["ST", MARK, "OP", CALL], "", 0),
        (["xSTO", MARK], "xSTO[TOOL_CALLS]", 0),
        (["é", MARK, CALL], "é", 1),
    ],
)
def test_a_marker_stays_behind_text_that_is_held_back(
    pieces: Sequence[str | int], text: str, calls: int
) -> None:
    answer, _ = read(pieces, stop=("STOP",))
    assert called(answer) == [("f", '{"a": 1}')] * calls
    assert answer.text == text


def test_a_marker_does_not_wait_for_anything_else() -> None:
    _, given = read(["ab", MARK, CALL])
    starts = [at for at, deltas in enumerate(given) if any(hasattr(delta, "name") for delta in deltas)]
    assert starts == [len("ab") + 1 + CALL.index("{")]
