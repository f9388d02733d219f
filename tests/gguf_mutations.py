"""GGUF files that are wrong in one place: what a damaged or hostile file may say, key by key.

Every one of them is a whole file with weights, so that nothing but the one value is a reason to refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType
from gguf.gguf_writer import GGUFValue

import gguf_factory

Edit = Callable[[gguf.GGUFWriter], None]

WHOLE = (0, 1, 2, 3, 7, 31, 63, 511, 512, 513, 65_537, 2**31 - 1, 2**31, 2**32 - 1)
REAL = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-40, 1.0, 1e38)
WORDS = ("", "x", "llama", "none", "no_vocab", "bert", "t5", "rwkv", "plamo2", "nonesuch", "x" * 100_000)

_WHOLE_KINDS = (
    GGUFValueType.UINT8,
    GGUFValueType.INT8,
    GGUFValueType.INT32,
    GGUFValueType.UINT64,
    GGUFValueType.FLOAT32,
    GGUFValueType.BOOL,
)
_FURTHER = (
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.expert_group_count",
    "llama.nextn_predict_layers",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.sliding_window",
    "llama.rope.scaling.original_context_length",
    "llama.leading_dense_block_count",
    "llama.pooling_type",
    "general.alignment",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.fim_pre_token_id",
    "split.count",
)
"""Whole numbers that a file may have besides those that the tiny model has."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A name that says what is wrong, and what makes it so."""

    name: str
    edit: Edit

    def write(self, path: Path) -> Path:
        """The tiny Llama with this fault."""
        return gguf_factory.tiny_llama(path, edit=self.edit)


def mutations() -> Iterator[Mutation]:
    """All of them: several hundred."""
    for key, value in _tiny_header().items():
        yield Mutation(f"{key} left out", _without(key))
        yield from _of(key, value)
    for key in _FURTHER:
        yield from _whole(key, GGUFValueType.UINT32)
    yield from _strings("llama.rope.scaling.type", ("linear", "yarn", "longrope", "Yarn", "dynamic", ""))
    yield from _tokenizers()


def _tiny_header() -> dict[str, GGUFValue]:
    """What the tiny model's header has, by key."""
    found: list[dict[str, GGUFValue]] = []

    def look(writer: gguf.GGUFWriter) -> None:
        found.append(dict(writer.kv_data[0]))
        raise _SeenError

    with suppress(_SeenError):
        gguf_factory.tiny_llama(Path("unwritten.gguf"), edit=look)
    return found[0]


class _SeenError(Exception):
    pass


def _of(key: str, value: GGUFValue) -> Iterator[Mutation]:
    if value.type in (GGUFValueType.UINT32, GGUFValueType.INT32):
        yield from _whole(key, value.type)
    elif value.type == GGUFValueType.FLOAT32:
        for number in REAL:
            yield setting(key, number, GGUFValueType.FLOAT32)
    elif value.type == GGUFValueType.STRING:
        yield from _strings(key, WORDS)
        yield setting(key, 7, GGUFValueType.UINT32)
    elif value.type == GGUFValueType.ARRAY:
        yield from _arrays(key, list(value.value))


def _whole(key: str, kind: GGUFValueType) -> Iterator[Mutation]:
    for number in WHOLE:
        if kind == GGUFValueType.UINT32 or number < 2**31:
            yield setting(key, number, kind)
    for other in _WHOLE_KINDS:
        if other != kind:
            yield setting(key, 8, other)
    yield setting(key, "8", GGUFValueType.STRING)
    yield setting(key, [2, 2], GGUFValueType.ARRAY)
    yield setting(key, [2**31 - 1] * 600, GGUFValueType.ARRAY)


def _strings(key: str, values: tuple[str, ...]) -> Iterator[Mutation]:
    for value in values:
        yield setting(key, value, GGUFValueType.STRING)
    yield setting(key, b"\xff\xfe\x80", GGUFValueType.STRING)


def _arrays(key: str, values: list[Any]) -> Iterator[Mutation]:
    yield setting(key, values[:1], GGUFValueType.ARRAY)
    yield setting(key, values[:-1], GGUFValueType.ARRAY)
    yield setting(key, values + values, GGUFValueType.ARRAY)
    yield setting(key, [values[0]] * len(values), GGUFValueType.ARRAY)
    yield setting(key, values[::-1], GGUFValueType.ARRAY)
    yield setting(key, 8, GGUFValueType.UINT32)
    if isinstance(values[0], int):
        yield setting(key, [2**31 - 1] * len(values), GGUFValueType.ARRAY)
        yield setting(key, [-1] * len(values), GGUFValueType.ARRAY)


def _tokenizers() -> Iterator[Mutation]:
    header = _tiny_header()
    count = len(header["tokenizer.ggml.tokens"].value)
    tokens, merges = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
    array = GGUFValueType.ARRAY
    for start in (b"\xff", b"\xf0\x9f", b"\0"):  # no UTF-8, half of it, and what ends a C string
        begun = [start + b"%d" % i for i in range(count)]
        yield named(f"tokens that begin with {start!r}", setting(tokens, begun, array))
    yield named("all tokens the same", setting(tokens, ["a"] * count, array))
    yield named("long tokens", setting(tokens, ["y" * 3000 + str(i) for i in range(count)], array))
    yield named("empty tokens", setting(tokens, [""] * count, array))
    for model in ("llama", "bert", "t5", "rwkv", "plamo2", "gemma4"):
        yield named(f"tokens of numbers for {model}", _both(model, [str(i) for i in range(count)]))
    yield named("merges of one word", setting(merges, ["a"] * 9, array))
    yield named("merges of three words", setting(merges, ["a b c"] * 9, array))
    yield named("merges of blanks", setting(merges, [" ", "  ", "   "], array))
    yield named("merges that are no UTF-8", setting(merges, [b"\xff \xfe", b"\x80 \x80"], array))
    yield named("merges of what is no token", setting(merges, ["qqq zzz"] * 9, array))
    for name in ("bos", "eos", "unknown", "padding", "separator", "mask", "eot"):
        yield setting(f"tokenizer.ggml.{name}_token_id", 2**32 - 1, GGUFValueType.UINT32)
    yield setting("tokenizer.ggml.add_bos_token", True, GGUFValueType.BOOL)
    charsmap = "tokenizer.ggml.precompiled_charsmap"
    yield named("a short map of characters", _both("t5", None, setting(charsmap, [1, 2], array)))
    yield named(
        "a wild map of characters", _both("t5", None, setting(charsmap, [8, 0, 0, 0, *[255] * 60], array))
    )


def _both(model: str, tokens: list[str] | None, further: Mutation | None = None) -> Mutation:
    def edit(writer: gguf.GGUFWriter) -> None:
        setting("tokenizer.ggml.model", model, GGUFValueType.STRING).edit(writer)
        if tokens is not None:
            setting("tokenizer.ggml.tokens", tokens, GGUFValueType.ARRAY).edit(writer)
        if further is not None:
            further.edit(writer)

    return Mutation("", edit)


def named(name: str, mutation: Mutation) -> Mutation:
    """The same under a name that says more."""
    return Mutation(name, mutation.edit)


def setting(key: str, value: Any, kind: GGUFValueType) -> Mutation:
    """A file that says `value` under a key, as a value of this kind."""

    def edit(writer: gguf.GGUFWriter) -> None:
        of = None if kind != GGUFValueType.ARRAY else GGUFValueType.get_type(value[0])
        writer.kv_data[0][key] = GGUFValue(value=value, type=kind, sub_type=of)

    shown = repr(value)
    return Mutation(f"{key} = {shown if len(shown) < 40 else shown[:40] + '…'} as {kind.name}", edit)


def _without(key: str) -> Edit:
    def edit(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0][key]

    return edit
