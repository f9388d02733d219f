"""What the fuzzers have child processes do: each stands for a server's process, which must not die of it."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from foredraft import Engine
from foredraft.errors import NoNextTokenError, RequestError
from foredraft.sampling.constraint import compile_constraint
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint, ConstraintKind, Draft

TOKENIZER = FakeTokenizer()
[END] = TOKENIZER.end_tokens
STEPS = 80


def follow(kind: ConstraintKind, source: str, strict: bool, seed: int) -> str | None:
    """A random answer under a constraint, up to its end or `STEPS` bytes; None if the constraint is refused.

    Raises AssertionError where what a guide allows, forces and keeps of a draft does not fit together.
    """
    try:
        guide = compile_constraint(Constraint(kind, source, strict), TOKENIZER)
    except RequestError as error:
        if not error.message or not error.hint or len(str(error)) > 1000:
            raise ValueError("an error without what is wrong and what to do") from error
        return None
    chance = random.Random(seed)
    row = np.zeros(TOKENIZER.vocab_size, np.float32)
    text = bytearray()
    try:
        while len(text) < STEPS and not guide.complete:
            allowed = np.flatnonzero(np.isfinite(guide.mask(row))).tolist()
            forced = guide.forced()
            assert not forced or allowed == forced[:1]
            token = chance.choice(allowed)
            guide.prune(Draft((token, *chance.choices(range(256), k=4)), "fuzz"))
            guide.advance([token])
            if token == END:
                break
            text += bytes([token]) if token < END else b"?"
    except NoNextTokenError:
        return None
    over = guide.complete
    return text.decode("utf-8", "replace") if over else None


@cache
def _engine() -> Engine:
    return Engine.load(speculate="off", context_length=512)


def tokenize(text: str, special: bool) -> bytes | None:
    """The bytes of a text's tokens under the default model; None for a text that is refused."""
    tokenizer = _engine().model.tokenizer
    try:
        tokens = tokenizer.encode(text, special=special)
        _engine().encode([{"role": "user", "content": text}])
    except RequestError:
        return None
    assert all(0 <= token < tokenizer.vocab_size for token in tokens)
    return b"".join(tokenizer.token_bytes(token) for token in tokens)


def unspelled() -> set[int]:
    """The bytes that no token of the default model is; its tokenizer leaves them out, as llama.cpp does."""
    tokenizer = _engine().model.tokenizer
    spelled = {tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)}
    return {byte for byte in range(256) if bytes([byte]) not in spelled}
