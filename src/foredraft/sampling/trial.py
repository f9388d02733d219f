"""Tries a constraint with llguidance: `try_out` runs in a child process, which may crash.

It uses a vocabulary of single bytes instead of the model's. A step with a token of twelve bytes is twelve
steps here, so a walk of `STEPS` covers as much of the grammar; the model's 50,000 to 250,000 tokens need not
be passed to and kept in each child; and the result holds for all models. Only a grammar that names tokens by
number gets as many tokens as the model has.

It has its own stack, smaller than that of any thread that may compile the constraint afterwards, so that a
constraint that fits here also fits there.
"""

from __future__ import annotations

import random
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

Form: TypeAlias = Literal["json", "regex", "lark"]

MAX_GRAMMAR = 100_000
"""Maximum symbols of a compiled grammar (llguidance's own limit is five times as high)."""

MAX_LEXER_STATES = 50_000
"""Maximum states of a grammar's lexer, of 1 to 2 kB each (llguidance's own limit: 250,000)."""

WHITESPACE = r"( |\n[ \t]{0,32})"
"""White space between the tokens of JSON, at most once: a space, or a new line with its indentation. If any
amount were allowed, small models could write spaces until the context is full. A schema can change it in
`x-guidance`.
"""

STEPS = 64
STACK = 1 << 20
BYTES = 256
_CLOSING = frozenset(b'"}],:{[')


def llguidance_grammar(form: Form, text: str) -> str:
    """A grammar in the form for LLMatcher. Raises ValueError."""
    from llguidance import LLMatcher

    if form == "regex":
        return LLMatcher.grammar_from_regex(text)
    if form == "lark":
        return LLMatcher.grammar_from_lark(text)
    return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITESPACE})


def limits() -> LLParserLimits:
    """Resource limits for llguidance."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_grammar_size=MAX_GRAMMAR, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
    )


def try_out(form: Form, text: str, vocab_size: int) -> str:
    """The reason why a constraint cannot be used, judged by its first bytes; empty if it can. May crash."""
    found: list[str | BaseException] = []

    def run() -> None:
        try:
            found.append(_complaint(form, text, vocab_size))
        except BaseException as error:  # noqa: BLE001 - raised again below
            found.append(error)

    usual = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _complaint(form: Form, text: str, vocab_size: int) -> str:
    from llguidance import LLMatcher

    try:
        grammar = llguidance_grammar(form, text)
    except ValueError as error:
        return str(error)
    matcher = LLMatcher(_bytes(vocab_size), grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        _walk(matcher)
    return error_text(matcher)


def _walk(matcher: LLMatcher) -> None:
    """Write some text of the grammar byte by byte, preferring bytes that end a value."""
    rng = random.Random(0)  # noqa: S311 - deterministic
    for _ in range(STEPS):
        choices = _allowed(matcher.compute_bitmask())
        if matcher.is_error() or not choices:
            return
        closing = [byte for byte in choices if byte in _CLOSING]
        matcher.consume_token(rng.choice(closing if closing and rng.random() < 0.5 else choices))
        matcher.compute_ff_tokens()
        if matcher.is_error() or matcher.is_stopped():
            return


def _allowed(mask: bytes) -> list[int]:
    """Bytes that may come next, or other tokens if no byte may. Without the end token."""
    first = range(BYTES // 8)
    found = _set_bits(mask, first)
    return found or [token for token in _set_bits(mask, range(BYTES // 8, len(mask))) if token > BYTES]


def _set_bits(mask: bytes, places: range) -> list[int]:
    return [8 * place + bit for place in places if mask[place] for bit in range(8) if mask[place] >> bit & 1]


def error_text(matcher: LLMatcher) -> str:
    """Why a matcher cannot continue; empty if it can."""
    text = matcher.get_error().split("<backtrace>")[0].split("<non-verbose/>")[0]
    text = " ".join(text.split())
    return "no token of this vocabulary may follow" if text.startswith("NoExtension") else text


class _Bytes:
    """A vocabulary of the 256 bytes, an end token, and control tokens up to a size."""

    bos_token_id = None
    eos_token_id = BYTES

    def __init__(self, vocab_size: int) -> None:
        self.special_token_ids = list(range(BYTES, vocab_size))
        control = [f"<|{token}|>".encode() for token in self.special_token_ids]
        self.tokens = [bytes([byte]) for byte in range(BYTES)] + control

    def __call__(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=2)
def _bytes(vocab_size: int) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = _Bytes(max(vocab_size, BYTES + 1))
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), slices=[])
