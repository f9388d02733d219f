"""Counter-based noise: a number for every (seed, position, token), without state.

The hash. `finalise` is the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; the constants
are Stafford's variant 13 of MurmurHash3's finaliser), a bijection of 64-bit words. A key is made from the
seed, the position and the stream by finalising after adding each; a token's word is `finalise(key + (token +
1) · GOLDEN)`, which is SplitMix64's own sequence started at the key. Its upper 52 bits k give u = (k + ½) ·
2⁻⁵², so that 2⁻⁵³ ≤ u ≤ 1 − 2⁻⁵³: never 0 or 1, and exact in float64 (with 53 bits k + ½ would round up to 1
for the largest k, and the Gumbel noise would be infinite).

Because nothing is sequential, text does not depend on whether it was speculated, resumed or interleaved with
other requests, and a draft model can use the same noise as the target (docs/how-it-works.md).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from foredraft.types import Logits

TokenIds: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Words: TypeAlias = npt.NDArray[np.uint64]

MATCH = 0
"""Stream of the noise that chooses the target's tokens, shared with coupled draft models."""
DRAFT = 1
"""Stream of a sampled draft (rules `rejection` and `block`)."""
ACCEPT = 2
"""Stream of the acceptance tests of a sampled draft."""
RESIDUAL = 3
"""Stream of the token that follows the accepted part of a sampled draft."""

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = (1 << 64) - 1

_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTOR_1, _FACTOR_2 = np.uint64(MIX_1), np.uint64(MIX_2)
LOOSE_BITS = 64 - 31
"""The lower bits of a word, the only ones that the last step of `finalise` changes."""

MAX_GUMBEL = -math.log(-math.log1p(-(2.0**-53)))
"""The largest possible noise: 36.74."""
HEAD = 128
"""Approximate number of likely tokens that `gumbel_choice` evaluates before it considers the others."""
SLICE = 8192
"""Tokens handled at once in passes over a whole vocabulary. 64 KiB of float64 stay in the cache, and below
the size from which malloc maps fresh pages for every temporary (which made a pass five times slower)."""
PASS = 2 * SLICE
"""Tokens hashed at once when only hashes are compared: two reused buffers, and a bit for each token."""
BLOCK = 128
"""Tokens per block of `largest_floor`."""


def finalise(word: int) -> int:
    """Mix one 64-bit word; a bijection."""
    word = ((word ^ (word >> 30)) * MIX_1) & MASK
    word = ((word ^ (word >> 27)) * MIX_2) & MASK
    return word ^ (word >> 31)


def make_key(seed: int, position: int, stream: int = MATCH) -> int:
    """The 64-bit key of a position's noise. Integers of any size and sign are taken modulo 2⁶⁴."""
    key = finalise((seed + GOLDEN) & MASK)
    key = finalise((key + position * GOLDEN) & MASK)
    return finalise((key ^ (stream * MIX_1)) & MASK)


def depth_stream(stream: int, depth: int) -> int:
    """The stream for draws at `depth` tokens into a round.

    Rounds of a sampled draft overlap: a position may be drafted, discarded and drafted again. Block
    verification looks at every drafted token before it decides, so noise that a position used in one round is
    not fresh in the next; (position, depth) distinguishes the rounds, since no two start at the same
    position.
    """
    return stream | (depth + 1) << 8


@lru_cache(maxsize=4)
def _steps(vocab_size: int) -> Words:
    """(token + 1) · GOLDEN for every token."""
    steps = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    steps.flags.writeable = False
    return steps


def _multiply_and_mix(words: Words, scratch: Words) -> None:
    """All of `finalise` in place except for its last step, using `scratch`. A word's upper 31 bits are then
    final.
    """
    for shift, factor in ((_SHIFT_1, _FACTOR_1), (_SHIFT_2, _FACTOR_2)):
        np.right_shift(words, shift, out=scratch)
        np.bitwise_xor(words, scratch, out=words)
        np.multiply(words, factor, out=words)


def _finalise_in_place(words: Words) -> Words:
    scratch = np.empty_like(words)
    _multiply_and_mix(words, scratch)
    np.right_shift(words, _SHIFT_3, out=scratch)
    words ^= scratch
    return words


def _words(key: int, tokens: TokenIds) -> Words:
    words = (tokens + 1).astype(np.uint64)
    words *= np.uint64(GOLDEN)
    words += np.uint64(key)
    return _finalise_in_place(words)


def _to_uniform(words: Words) -> Floats:
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _to_gumbel(words: Words) -> Floats:
    """Standard Gumbel noise −log(−log u)."""
    noise = np.log(_to_uniform(words))
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def uniform(seed: int, position: int, tokens: TokenIds, stream: int = MATCH) -> Floats:
    """Uniform noise in (0, 1) for each token, shape of `tokens`."""
    return _to_uniform(_words(make_key(seed, position, stream), tokens))


def gumbel_argmax(tokens: TokenIds, scores: Floats, key: int) -> int:
    """The token with the largest score + noise: a sample of softmax(scores). Ties: the first."""
    token, best = int(tokens[0]), -math.inf
    for first in range(0, tokens.size, SLICE):
        part = tokens[first : first + SLICE]
        noisy = _to_gumbel(_words(key, part))
        noisy += scores[first : first + SLICE]
        at = int(noisy.argmax())
        if noisy[at] > best:
            token, best = int(part[at]), float(noisy[at])
    return token


def largest_floor(row: Logits, count: int) -> float:
    """A logit that at least `count` (≥ 1, ≤ row size) tokens reach and few others do, computed cheaply.

    It is the count-th largest of the maxima of disjoint blocks of tokens; each maximum is a different token,
    so it cannot exceed the count-th largest logit. With too few blocks it is that logit itself.
    """
    blocks = row.size // BLOCK
    values = row if blocks < count else row[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
    return float(np.partition(values, values.size - count)[values.size - count])


def gumbel_choice(row: Logits, temperature: float, key: int) -> int:
    """`gumbel_argmax` over a whole row of logits ÷ temperature, without evaluating most of the noise.

    A head of likely tokens is evaluated. Every other token has a logit below the head's, so it can only win
    with noise above a bound, that is with a hash above a threshold: comparing the hashes finds the few such
    tokens. The result equals that of evaluating every token.
    """
    floor = largest_floor(row, min(HEAD, row.size))
    head = np.flatnonzero(row >= floor)
    scores = row[head].astype(np.float64) / temperature + _to_gumbel(_words(key, head))
    best = int(scores.argmax())
    needed = float(scores[best]) - floor / temperature
    late = _noisy_tokens(row.size, key, needed)
    if late.size:
        late_scores = row[late].astype(np.float64) / temperature + _to_gumbel(_words(key, late))
        challenger = int(late_scores.argmax())
        if late_scores[challenger] > scores[best]:
            return int(late[challenger])
    return int(head[best])


def _noisy_tokens(vocab_size: int, key: int, needed: float) -> TokenIds:
    """Every token whose Gumbel noise is at least `needed`, and possibly a few more."""
    if not needed <= MAX_GUMBEL:
        return np.empty(0, np.int64)
    # P(noise > needed) = 1 − exp(−e^−needed); the slack covers the rounding of both sides.
    above = -math.expm1(-math.exp(-max(needed, -5.0) + 1e-9))
    exact = max(0, int((1.0 - above) * 2.0**64) - (1 << 20))
    # The last step of `finalise` does not change a word's upper bits, which are sufficient.
    threshold = np.uint64(exact >> LOOSE_BITS << LOOSE_BITS)
    steps, start = _steps(vocab_size), np.uint64(key)
    both = np.empty((2, min(PASS, vocab_size)), np.uint64)
    found = []
    for first in range(0, vocab_size, PASS):
        part = steps[first : first + PASS]
        words, scratch = both[:, : part.size]
        _multiply_and_mix(np.add(part, start, out=words), scratch)
        reached = words >= threshold
        if reached.any():
            found.append(np.flatnonzero(reached) + first)
    return np.concatenate(found) if found else np.empty(0, np.int64)
