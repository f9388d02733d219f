"""From a constraint (JSON schema, regex, grammar) to a `Guide`, by way of llguidance.

llguidance wants the bytes of all tokens once. Its view of a vocabulary is built at the first constrained
request or by `get_ready`, takes a quarter of a second for 49,152 tokens, and is kept as long as the tokenizer
lives. A compiled constraint is kept too: most callers send the same schema again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from foredraft import installation
from foredraft.errors import MissingDependencyError
from foredraft.protocols import Tokenizer
from foredraft.sampling import verdicts
from foredraft.sampling.grammar import Source, source_of, unusable
from foredraft.sampling.guide import Guide
from foredraft.sampling.trial import error_text, limits, llguidance_grammar
from foredraft.types import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 32
"""Compiled constraints kept for each vocabulary."""

REMEMBERED = 4096
"""Forced texts whose tokens are remembered for each vocabulary: keys of a schema come again and again."""

_MARK = "\x02"


def compile_constraint(constraint: Constraint, tokenizer: Tokenizer, *, ignore_eos: bool = False) -> Guide:
    """A guide at the beginning of an answer. Any thread may ask; one that is kept is had without waiting.

    Raises RequestError for a constraint that cannot be used, saying why, and MissingDependencyError.
    """
    source = source_of(constraint)
    return _compiler(tokenizer).guide(constraint, source, ignore_eos=ignore_eos)


def get_ready(tokenizer: Tokenizer) -> None:
    """Build llguidance's view of the vocabulary now, if llguidance is installed. No other thread runs Python
    meanwhile, so with the first constrained request everybody would feel it.
    """
    with suppress(MissingDependencyError):
        _compiler(tokenizer)
        verdicts.get_ready()


def _compiler(tokenizer: Tokenizer) -> _Compiler:
    try:
        compiler = _compilers.get(tokenizer)
        if compiler is None:
            with _building:
                compiler = _compilers.get(tokenizer) or _Compiler(tokenizer)
                _compilers[tokenizer] = compiler
        return compiler
    except TypeError:  # a tokenizer that cannot be referred to weakly: build it every time
        return _Compiler(tokenizer)


class _Compiler:
    """Compiles constraints for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._ends = tokenizer.end_tokens
        self._vocabulary = _build(tokenizer)
        self._kept: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._keeping = Lock()

    def guide(self, constraint: Constraint, source: Source, *, ignore_eos: bool) -> Guide:
        with self._keeping:
            start = self._kept.get(constraint)
        if start is None:
            start = self._compile(constraint, source)  # two may: better than one that waits
        with self._keeping:
            self._kept[constraint] = start
            self._kept.move_to_end(constraint)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)

        def fresh() -> LLMatcher:
            with self._keeping:
                if self._kept.get(constraint) is start:  # its states are used up
                    del self._kept[constraint]
            return self._matcher(source)

        return Guide(start, fresh, self._vocab_size, self._ends, ignore_eos=ignore_eos)

    def _compile(self, constraint: Constraint, source: Source) -> LLMatcher:
        verdicts.check(constraint, source, self._vocab_size)
        matcher = self._matcher(source)
        begun = matcher.deep_copy()
        if not begun.is_error():
            begun.compute_bitmask()  # {"$ref": "#"} compiles, and describes no text that ends
        if begun.is_error():
            raise unusable(constraint, error_text(begun))
        return matcher

    def _matcher(self, source: Source) -> LLMatcher:
        from llguidance import LLMatcher

        grammar = llguidance_grammar(source.form, source.text)
        return LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits())


_compilers: WeakKeyDictionary[Tokenizer, _Compiler] = WeakKeyDictionary()
_building = Lock()


# --- the vocabulary ------------------------------------------------------------------------------------


class _Vocabulary:
    """A tokenizer as llguidance reads it. Does not keep the tokenizer alive."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        ends = sorted(tokenizer.end_tokens)
        self.tokens = [
            b"" if token in tokenizer.end_tokens else tokenizer.token_bytes(token)
            for token in range(tokenizer.vocab_size)
        ]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        if not ends:  # llguidance needs one; this one is outside the vocabulary, so it is never chosen
            ends = [len(self.tokens)]
            self.tokens.append(b"")
            self.special_token_ids.append(ends[0])
        self.end_tokens = ends
        self.eos_token_id = ends[0]
        self._tokenizer = ref(tokenizer)
        self._remembered: dict[str, list[int]] = {}
        self._ids: dict[bytes, int] = {}
        for token, text in enumerate(self.tokens):
            if text:
                self._ids.setdefault(text, token)
        self._longest = max(map(len, self._ids), default=0)
        for token in self.special_token_ids:
            # Under one name for all llguidance's mask lets all of them through where a grammar has one.
            self.tokens[token] = f"<|{token}|>".encode()

    def __call__(self, text: str) -> list[int]:
        """The tokenizer's own tokens for a text that may stand anywhere: with the text's bytes, no others."""
        known = self._remembered.get(text)
        if known is None:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            known = self._remembered[text] = self._encode(text)
        return known

    def _encode(self, text: str) -> list[int]:
        raw = text.encode("utf-8", "surrogatepass")
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return self._greedy(raw)
        tokens = tokenizer.encode(text)
        if self._spell(tokens) == raw:
            return tokens
        # Some tokenizers put a space before a text: give them something else to put it before.
        mark, marked = tokenizer.encode(_MARK), tokenizer.encode(_MARK + text)
        rest = marked[len(mark) :]
        if marked[: len(mark)] == mark and self._spell(rest) == raw:
            return rest
        return self._greedy(raw)

    def _spell(self, tokens: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in tokens if 0 <= token < len(self.tokens))

    def _greedy(self, raw: bytes) -> list[int]:
        """The longest token at each place, up to bytes that no token begins with."""
        found: list[int] = []
        at = 0
        while at < len(raw):
            for width in range(min(self._longest, len(raw) - at), 0, -1):
                token = self._ids.get(raw[at : at + width])
                if token is not None:
                    found.append(token)
                    at += width
                    break
            else:
                break
        return found


def _build(tokenizer: Tokenizer) -> LLTokenizer:
    """Raises MissingDependencyError."""
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "Constraining an answer needs the Python package 'llguidance', which is not installed.",
            hint=f"Install it with: {installation.add_extra('grammar')}",
        ) from None
    vocabulary = _Vocabulary(tokenizer)
    wrapper = TokenizerWrapper(vocabulary)
    return LLTokenizer(wrapper, n_vocab=len(vocabulary.tokens), eos_token=vocabulary.end_tokens)
