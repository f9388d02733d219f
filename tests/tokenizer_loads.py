"""What a child process of a test has a GGUF's tokenizer do: a crash is counted, and ends no test run."""

from __future__ import annotations

import random
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from foredraft.backends.llamacpp import BACKEND, trial
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import ModelOptions
from foredraft.errors import ForedraftError
from foredraft.isolation.pool import ChildPool

PIECES = (
    *("a", "Z", "é", "ß", "字", "ひ", "한", "ا", "ก", "9", "123456789", "the ", " the", "don't", "I'LL"),
    *(
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u00a0",
        "\u2028",
        "\u3000",
        "\u200b",
        "\ufeff",
        "\x00",
        "\x1f",
        "\x85",
    ),
    *(
        "👩",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "e\u0301",
        "\u0301",
        "\u202e",
        "\U000e0001",
        "\U0010ffff",
        "\ufffe",
        "\ufffd",
        "�",
    ),
    *(
        "\ud800",
        "\udfff",
        "\ud83d\ude00",
        "<|im_end|>",
        "<|im_",
        "</s>",
        "<0x0A>",
        "▁",
        "Ġ",
        "Ċ",
        "##",
        "[UNK]",
    ),
    *("(", ")", "{", "}", '"', "'", "\\", "/", "-", "_", ".", ",", "!", "½", "²", "Ⅷ", "ﬁ", "İ", "ǆ"),
)


@cache
def _children() -> ChildPool:
    """For the trials of all files: starting one takes longer than trying a small file."""
    return ChildPool(size=1, memory=trial.MEMORY)


@cache
def _model(path: str) -> LlamaCppModel | str:
    trial.start_children = lambda: nullcontext(_children())  # type: ignore[assignment]
    options = ModelOptions(threads=1, gpu_layers=0, sequences=1, batch=64, ubatch=64, probe=False)
    try:
        model = BACKEND.load(Path(path), options)
    except ForedraftError as error:
        return error.message
    assert isinstance(model, LlamaCppModel)
    return model


def text_of(seed: int) -> str:
    """Some of the pieces, and now and then one of them very often."""
    rng = random.Random(seed)
    parts = [rng.choice(PIECES) for _ in range(rng.choice((1, 3, 30, 300)))]
    if not seed % 7:
        parts.insert(rng.randrange(len(parts)), rng.choice(PIECES) * 20_000)
    return "".join(parts)


def encode(path: str, first: int, count: int) -> list[str]:
    """What was wrong with so many texts: ids outside the vocabulary, or another text than before."""
    model, faults = _model(path), []
    if isinstance(model, str):
        return []  # a tokenizer that this llama.cpp does not know
    tokenizer = model.tokenizer
    for seed in range(first, first + count):
        text = text_of(seed)
        for special in (False, True):
            tokens = tokenizer.encode(text, special=special, add_bos=special)
            if not all(0 <= token < tokenizer.vocab_size for token in tokens):
                faults.append(f"{seed}: an id outside the vocabulary")
            back = b"".join(map(tokenizer.token_bytes, tokens))
            whole = not any("\ud800" <= character <= "\udfff" for character in text)
            if whole and not special and back != text.encode():
                faults.append(f"{seed}: another text comes back")
    return faults


def survives(path: str, text: str) -> bool:
    """Whether a text is encoded, and comes back."""
    model = _model(path)
    assert isinstance(model, LlamaCppModel), model
    return b"".join(map(model.tokenizer.token_bytes, model.tokenizer.encode(text))) == text.encode()
