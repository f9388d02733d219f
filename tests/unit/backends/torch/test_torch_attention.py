"""Attention over the cache: what it computes, and that a row's result does not depend on its company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from foredraft.backends.torch.attention import (
    ALIGNED,
    Attention,
    Style,
    attend_in_blocks,
    attend_masked,
)
from foredraft.backends.torch.batch import SeenImage, ancestors, make_batch
from foredraft.backends.torch.kv import KVCache
from foredraft.images import ImageSpan, PreparedImage
from foredraft.types import Rows

CPU = torch.device("cpu")
SIZE = 16
LENGTH = 460
STYLES = {
    "plain": Style(0.25),
    "window": Style(0.3, window=30),
    "softcap": Style(0.25, softcap=5.0),
    "sinks": Style(0.25, sinks=torch.tensor([0.3, -1.0, 2.0, 0.0])),
}
WAYS: dict[str, Attention] = {"blocks": attend_in_blocks, "masked": attend_masked}


class Text:
    """Random queries, keys and values of a text, in a cache of two key heads and four query heads."""

    def __init__(
        self, attention: Attention, style: Style, heads: int = 4, groups: int = 2, size: int = SIZE
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q = torch.randn(LENGTH, heads, size, generator=generator)
        self.k, self.v = torch.randn(2, LENGTH, groups, size, generator=generator)
        self.attention, self.style = attention, style
        self.cache = KVCache(4, LENGTH, dtype=torch.float32, device=CPU)
        self.layer = self.cache.layer(0, groups, size, size)

    def see(self, start: int, rows: Sequence[int], parents: Sequence[int] | None = None, seq: int = 0) -> Any:
        """What the given rows of the text see after `start` cells."""
        batch = make_batch([Rows(seq, start, rows, 0, parents)], CPU)
        index = torch.tensor(rows)
        return self.attention(
            self.layer, batch, self.q[index], (self.k[index], self.v[index]), style=self.style
        )


def naive(text: Text, row: int, seen: Sequence[int]) -> Any:
    """Attention of one row over some rows, in double precision."""
    shared = text.q.shape[1] // text.k.shape[1]
    style, index = text.style, torch.tensor(seen)
    if style.window is not None:
        index = index[-style.window :]
    keys = text.k[index].double().repeat_interleave(shared, 1)
    values = text.v[index].double().repeat_interleave(shared, 1)
    scores = torch.einsum("hd,nhd->hn", text.q[row].double(), keys) * style.scale
    if style.softcap is not None:
        scores = torch.tanh(scores / style.softcap) * style.softcap
    if style.sinks is not None:
        scores = torch.cat([scores, style.sinks.double()[:, None]], 1)
    weights = torch.softmax(scores, -1)[:, : len(index)]
    return torch.einsum("hn,nhd->hd", weights, values).float()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
def test_a_chain_sees_what_came_before(way: str, style: str) -> None:
    text = Text(WAYS[way], STYLES[style])
    done = 0
    for count in (1, 40, 3, 150, 200, 1, 65):
        found = text.see(done, range(done, done + count))
        for row in (0, count // 2, count - 1):
            expected = naive(text, done + row, range(done + row + 1))
            torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)
        done += count


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_an_image_see_all_of_it(way: str, style: str) -> None:
    """Two images of 20 and 150 rows in one forward, and rows around them, which see what came before."""
    text = Text(WAYS[way], STYLES[style])
    text.see(0, range(10))
    blocks = ((12, 32), (40, 190))
    spans = [ImageSpan(start, end - start, image_of(end - start)) for start, end in blocks]
    batch = make_batch([Rows(0, 10, range(10, 200), 0, images=spans)], CPU, whole=True)
    rows = torch.arange(10, 200)
    found = text.attention(text.layer, batch, text.q[rows], (text.k[rows], text.v[rows]), style=text.style)
    window = text.style.window or LENGTH
    text.style = replace(text.style, window=None)
    for row in (10, 11, 12, 20, 31, 32, 39, 40, 100, 189, 190, 199):
        end = next((last for first, last in blocks if first <= row < last), row + 1)
        seen = range(max(0, row - window + 1), end)
        torch.testing.assert_close(found[row - 10], naive(text, row, seen), atol=1e-5, rtol=1e-4)


def image_of(rows: int) -> PreparedImage:
    return PreparedImage("image", (0,) * rows, ((0, rows),), SeenImage(torch.zeros(rows, 1)))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_a_tree_sees_its_ancestors(way: str, style: str) -> None:
    text = Text(WAYS[way], STYLES[style])
    text.see(0, range(185))
    parents = (-1, 0, 0, -1, 1, 2, 4, 5, 5)
    rows = range(185, 194)
    found = text.see(185, rows, parents)
    for row in range(9):
        seen = [*range(185), *(185 + node for node in ancestors(parents, row))]
        torch.testing.assert_close(found[row], naive(text, 185 + row, seen), atol=1e-5, rtol=1e-4)
    text.cache.lengths[0] = 194
    text.cache.keep_path(0, 185, (0, 2, 5, 8))
    kept = [*range(185), 185, 187, 190, 193]
    found = text.see(189, [300])
    torch.testing.assert_close(found[0], naive(text, 300, [*kept, 300]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (4, 4), (4, 1)])
def test_in_blocks_the_bits_do_not_depend_on_the_company(style: str, heads: int, groups: int) -> None:
    text = Text(attend_in_blocks, STYLES[style], heads, groups)
    single = torch.cat([text.see(row, [row]) for row in range(LENGTH)])
    for start in (0, 1, 60, 150, 190, 192, 380):
        for count in (2, 3, 5, 8, 17, 63, 70):
            found = text.see(start, range(start, start + count))
            assert torch.equal(found, single[start : start + count]), (start, count)


@pytest.mark.parametrize("size", [64, 96, 128, 256])
@pytest.mark.parametrize("groups", [1, 4])
def test_in_blocks_the_bits_of_large_heads_do_not_depend_on_the_company(size: int, groups: int) -> None:
    """MKL has kernels for a few rows of them."""
    text = Text(attend_in_blocks, STYLES["plain"], 4, groups, size)
    single = torch.cat([text.see(row, [row]) for row in range(LENGTH)])
    for start in (0, 190, 380):
        for count in (2, 3, 5, 8, 17, 63):
            found = text.see(start, range(start, start + count))
            assert torch.equal(found, single[start : start + count]), (start, count)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_sequences_are_computed_together(way: str, style: str, count: int) -> None:
    starts = (3, 40, 191, 430)
    text = Text(WAYS[way], STYLES[style])
    parts = []
    for seq, start in enumerate(starts):
        text.see(0, range(start), seq=seq)
        parts.append(Rows(seq, start, range(start, start + count), 0))
    index = torch.tensor([row for part in parts for row in part.tokens])
    batch = make_batch(parts, CPU)
    args = (text.layer, batch, text.q[index], (text.k[index], text.v[index]))
    found = text.attention(*args, style=text.style)
    for number, row in enumerate(index.tolist()):
        torch.testing.assert_close(found[number], naive(text, row, range(row + 1)), atol=1e-5, rtol=1e-4)
    alone = torch.cat(
        [text.see(start, range(start, start + count), seq=seq) for seq, start in enumerate(starts)]
    )
    assert way == "masked" or torch.equal(found, alone)


@pytest.mark.parametrize("style", STYLES)
def test_in_blocks_a_branch_has_the_bits_of_a_chain(style: str) -> None:
    text = Text(attend_in_blocks, STYLES[style])
    single = torch.cat([text.see(row, [row]) for row in range(LENGTH)])
    for start in (60, 187, 380):
        text.see(0, range(start))
        # Rows 0, 2, 4, … are the text that follows; every second row is a wrong guess beside it.
        right = range(start, start + 6)
        rows = [row for after in right for row in (after, (after + 7) % LENGTH)]
        parents = [-1, -1] + [2 * (i // 2) - 2 for i in range(2, 12)]
        found = text.see(start, rows, parents)
        assert torch.equal(found[::2], single[start : start + 6])


@pytest.mark.parametrize("limit", [("SCORES", 4 * 400 * 7), ("CHUNK", 10)])
def test_long_prompts_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]) -> None:
    whole, parts = Text(attend_in_blocks, STYLES["plain"]), Text(attend_in_blocks, STYLES["plain"])
    monkeypatch.setattr("foredraft.backends.torch.attention.CHUNK", 1000)
    expected = whole.see(0, range(400))
    monkeypatch.setattr(f"foredraft.backends.torch.attention.{limit[0]}", limit[1])
    assert torch.equal(parts.see(0, range(400)), expected)


@pytest.mark.parametrize("way", WAYS)
def test_keys_and_values_side_by_side_are_written_alike(way: str) -> None:
    apart, joined = (Text(WAYS[way], STYLES["plain"]) for _ in range(2))
    both = torch.stack([joined.k, joined.v], 1)
    parts = [
        Rows(0, 0, range(20), 0),
        Rows(1, 0, range(20), 0),
        Rows(3, 0, range(7), 0, (-1, 0, 0, 1, 2, 3, 4)),
    ]
    index = torch.tensor([row for part in parts for row in part.tokens])
    batches = [make_batch(parts, CPU) for _ in range(2)]
    expected = apart.attention(
        apart.layer, batches[0], apart.q[index], (apart.k[index], apart.v[index]), style=apart.style
    )
    found = joined.attention(joined.layer, batches[1], joined.q[index], both[index], style=joined.style)
    assert torch.equal(found, expected)
    assert torch.equal(joined.layer.keys, apart.layer.keys)
    assert torch.equal(joined.layer.values, apart.layer.values)


def test_a_mask_is_made_once_and_needs_no_copy() -> None:
    """Also for one row, which without one goes to another kernel than several."""
    text = Text(attend_masked, STYLES["plain"])
    text.see(0, range(50))
    for count in (1, 3):
        batch = make_batch([Rows(0, 50, range(50, 50 + count), 0)], CPU)
        index = torch.arange(50, 50 + count)
        for _ in range(2):
            args = (text.layer, batch, text.q[index], (text.k[index], text.v[index]))
            text.attention(*args, style=text.style)
            [mask] = batch.scratch.values()
        assert mask.shape == (2 * count, 50 + count)
        assert mask.dtype == text.q.dtype
        assert mask.stride(1) == 1
        assert mask.stride(0) % ALIGNED == 0, "51 and 53 are not"
        assert mask.eq(0).sum(1).tolist() == [51 + row for row in range(count) for _ in range(2)]
