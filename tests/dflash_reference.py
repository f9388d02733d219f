"""Block-diffusion heads in NumPy, one row after the other, from a GGUF file's tensors: what llama.cpp is
compared with. Everything is in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EPSILON = 1e-5


class Reference:
    """A head in a file (f32), with the tensors of its target where it has none of its own."""

    def __init__(self, path: Path, target: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._tensors = {one.name: np.array(one.data, np.float64) for one in gguf.GGUFReader(target).tensors}
        self._tensors = {name: self._tensors[name] for name in ("token_embd.weight", "output.weight")} | {
            one.name: np.array(one.data, np.float64) for one in reader.tensors
        }
        self._chosen = [int(token) for token in self._tensors.get("d2t", ())]

        def value(key: str, otherwise: object = None) -> object:
            field = reader.get_field(key)
            return otherwise if field is None else field.contents()

        self._depth = int(value("dflash.block_count"))  # type: ignore[call-overload]
        self._heads = int(value("dflash.attention.head_count"))  # type: ignore[call-overload]
        self._groups = int(value("dflash.attention.head_count_kv"))  # type: ignore[call-overload]
        self._mask = int(value("tokenizer.ggml.mask_token_id"))  # type: ignore[call-overload]
        self._causal = bool(value("dflash.attention.causal", otherwise=False))
        self._window = int(value("dflash.attention.sliding_window", 0))  # type: ignore[call-overload]
        self._choices = int(value("dflash.selector_top_k", 0))  # type: ignore[call-overload]
        self._anchored = "markov_w1.weight" in self._tensors and bool(
            value("dflash.sample_from_anchor", otherwise=True)
        )

    def block(self, features: npt.ArrayLike, first: int, token: int, count: int) -> Array:
        """The logits of the `count` tokens after `token`, shape (count, vocabulary). `features`: the target's
        of the tokens from position `first` on up to the one before.
        """
        text = np.asarray(features, np.float64)
        fused = _normed(text @ self._matrix("fc").T) * self._vector("enc.output_norm")
        size = count if self._anchored else count + 1
        tokens = [token, *[self._mask] * (size - 1)]
        places = np.arange(first, first + len(text) + size)
        hidden = self._tensors["token_embd.weight"][tokens]
        for number in range(self._depth):
            hidden = self._layer(number, fused, hidden, places)
        hidden = _normed(hidden) * self._vector("output_norm")
        logits = self._logits(hidden)
        if "markov_w1.weight" in self._tensors:
            self._add_bias(logits, token)
        if self._choices:
            return self._selected(hidden, logits, token)
        return logits[size - count :]

    def _layer(self, number: int, fused: Array, hidden: Array, places: npt.NDArray[np.int_]) -> Array:
        prefix = f"blk.{number}."
        normed = _normed(hidden) * self._vector(prefix + "attn_norm")
        mixed = self._mixed(prefix + "attn", normed, normed, 0)
        end = len(fused)
        queries = self._turned(mixed, prefix + "attn_q", places[end:], self._heads)
        keys = np.concatenate(
            [
                self._turned(fused, prefix + "attn_k", places[:end], self._groups),
                self._turned(mixed, prefix + "attn_k", places[end:], self._groups),
            ]
        )
        values = np.concatenate([fused, mixed]) @ self._matrix(prefix + "attn_v").T
        window = self._window if number % 2 == 0 else 0
        seen = self._attended(queries, keys, values.reshape(len(keys), self._groups, -1), places, window)
        added = self._mixed(prefix + "attn", seen @ self._matrix(prefix + "attn_output").T, normed, 1)
        hidden = hidden + added
        normed = _normed(hidden) * self._vector(prefix + "ffn_norm")
        mixed = self._mixed(prefix + "ffn", normed, normed, 0)
        gate, up = mixed @ self._matrix(prefix + "ffn_gate").T, mixed @ self._matrix(prefix + "ffn_up").T
        added = (gate / (1.0 + np.exp(-gate)) * up) @ self._matrix(prefix + "ffn_down").T
        return hidden + self._mixed(prefix + "ffn", added, normed, 1)

    def _turned(self, rows: Array, name: str, places: npt.NDArray[np.int_], heads: int) -> Array:
        """Queries or keys, shape (rows, heads, numbers), normed and turned by their positions."""
        made = (rows @ self._matrix(name).T).reshape(len(rows), heads, -1)
        made = _normed(made) * self._vector(name + "_norm")
        half = made.shape[2] // 2
        angles = places[:, None, None] * 10000.0 ** (-np.arange(half) / half)
        left, right = made[..., :half], made[..., half:]
        return np.concatenate(
            [left * np.cos(angles) - right * np.sin(angles), left * np.sin(angles) + right * np.cos(angles)],
            axis=2,
        )

    def _attended(
        self, queries: Array, keys: Array, values: Array, places: npt.NDArray[np.int_], window: int
    ) -> Array:
        rows, heads, size = queries.shape
        own = places[len(places) - rows :]
        found = np.empty((rows, heads, size))
        for row in range(rows):
            seen = np.ones(len(places), bool)
            if self._causal:
                seen &= places <= own[row]
            if window:
                seen &= own[row] - places < window
            for head in range(heads):
                group = head * self._groups // heads
                scores = keys[seen, group] @ queries[row, head] / size**0.5
                weights = np.exp(scores - scores.max())
                found[row, head] = weights @ values[seen, group] / weights.sum()
        return found.reshape(rows, heads * size)

    def _mixed(self, name: str, rows: Array, normed: Array, side: int) -> Array:
        """DFlash2's convolutions over the rows of a block, whose weights depend on the row."""
        if name + "_conv_proj.weight" not in self._tensors:
            return rows
        base = self._tensors[name + "_conv_base"][side]  # (kernel, numbers)
        kernel, width = base.shape
        made = (normed @ self._matrix(name + "_conv_proj").T).reshape(len(rows), 2, kernel, -1)[:, side]
        weights = base + made.repeat(width // made.shape[2], axis=2)
        found = np.zeros_like(rows)
        for row in range(len(rows)):
            for back in range(min(kernel, row + 1)):
                found[row] += weights[row, back] * rows[row - back]
        return found

    def _logits(self, hidden: Array) -> Array:
        return self._spread(hidden @ self._matrix("output").T, -np.inf)

    def _spread(self, rows: Array, otherwise: float) -> Array:
        """Numbers of the chosen tokens as those of all."""
        if not self._chosen:
            return rows
        whole = np.full((len(rows), len(self._tensors["token_embd.weight"])), otherwise)
        whole[:, self._chosen] = rows
        return whole

    def _add_bias(self, logits: Array, token: int) -> None:
        """DSpark's Markov head: what follows the token before, which is the likeliest one."""
        for row in range(not self._anchored, len(logits)):
            known = self._tensors["markov_w1.weight"][token]
            logits[row] += self._spread((self._matrix("markov_w2") @ known)[None], 0.0)[0]
            token = int(logits[row].argmax())

    def _selected(self, hidden: Array, logits: Array, token: int) -> Array:
        """DFlash2's selector: of the likeliest tokens the one that follows best."""
        found = np.full((len(hidden) - 1, logits.shape[1]), -np.inf)
        gates = hidden @ self._matrix("selector_hidden").T
        for row in range(1, len(hidden)):
            tokens = np.argsort(-logits[row], kind="stable")[: self._choices]
            before = self._tensors["selector_predecessor.weight"][token] * gates[row]
            scores = self._tensors["selector_successor.weight"][tokens] @ before + logits[row, tokens]
            found[row - 1, tokens] = scores
            token = int(tokens[scores.argmax()])
        return found

    def _matrix(self, name: str) -> Array:
        return self._tensors[name + ".weight"]

    def _vector(self, name: str) -> Array:
        return self._tensors[name + ".weight"]


def _normed(rows: Array) -> Array:
    normed: Array = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + EPSILON)
    return normed


def likeliest(rows: Sequence[Array] | Array) -> list[int]:
    """The likeliest token of each row."""
    return [int(row.argmax()) for row in rows]
