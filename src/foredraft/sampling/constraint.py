"""Compiles a constraint (JSON schema, regex, grammar) into a `Guide`, with llguidance.

llguidance needs the bytes of all tokens once. Its vocabulary is built for the first constrained request or by
`get_ready`, takes a quarter of a second for 49,152 tokens, and is kept as long as the tokenizer. Compiled
constraints are cached too, because most clients send the same schema repeatedly.
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
"""Maximum compiled constraints cached per vocabulary."""

REMEMBERED = 4096
"""Maximum forced texts whose tokens are cached per vocabulary: keys of a schema occur repeatedly."""

_MARK = "\x02"


def compile_constraint(constraint: Constraint, tokenizer: Tokenizer, *, ignore_eos: bool = False) -> Guide:
    """A guide at the beginning of an answer. Any thread may call it; a cached constraint does not wait.

    Raises RequestError with the reason for an unusable constraint, and MissingDependencyError.
    """
    source = source_of(constraint)
    return _compiler(tokenizer).guide(constraint, source, ignore_eos=ignore_eos)


def get_ready(tokenizer: Tokenizer) -> None:
    """Build llguidance's vocabulary now, if llguidance is installed. That blocks all Python threads, which
    all requests would notice with the first constrained one.
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
    except TypeError:  # a tokenizer without weak references: build it every time
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
            start = self._compile(constraint, source)  # two threads may do it: better than waiting
        with self._keeping:
            self._kept[constraint] = start
            self._kept.move_to_end(constraint)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)

        def fresh() -> LLMatcher:
            with self._keeping:
                if self._kept.get(constraint) is start:  # its state budget is used up
                    del self._kept[constraint]
            return self._matcher(source)

        return Guide(start, fresh, self._vocab_size, self._ends, ignore_eos=ignore_eos)

    def _compile(self, constraint: Constraint, source: Source) -> LLMatcher:
        verdicts.check(constraint, source, self._vocab_size)
        matcher = self._matcher(source)
        begun = matcher.deep_copy()
        if not begun.is_error():
            begun.compute_bitmask()  # {"$ref": "#"} compiles, but describes no finite text
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
    """A tokenizer in the form that llguidance needs. Does not keep the tokenizer alive."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        ends = sorted(tokenizer.end_tokens)
        self.tokens = [
            b"" if token in tokenizer.end_tokens else tokenizer.token_bytes(token)
            for token in range(tokenizer.vocab_size)
        ]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        if not ends:  # llguidance needs an end token; this one is outside the vocabulary and never chosen
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
            # With one name for all, llguidance's mask would allow all of them if a grammar has one.
            self.tokens[token] = f"<|{token}|>".encode()

    def __call__(self, text: str) -> list[int]:
        """The tokenizer's tokens for a text at any position: with the text's bytes and no others."""
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
        # Some tokenizers add a space before a text: encode it after another text.
        mark, marked = tokenizer.encode(_MARK), tokenizer.encode(_MARK + text)
        rest = marked[len(mark) :]
        if marked[: len(mark)] == mark and self._spell(rest) == raw:
            return rest
        return self._greedy(raw)

    def _spell(self, tokens: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in tokens if 0 <= token < len(self.tokens))

    def _greedy(self, raw: bytes) -> list[int]:
        """The longest token at each position, up to bytes with which no token starts."""
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
