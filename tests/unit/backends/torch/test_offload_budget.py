"""Which layers stay on a device: as many as fit, as many as were named, or an error with numbers in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.backends.torch.offload_budget import (
    AUTOMATIC,
    Needs,
    choose_streamed,
    size,
    spread,
    working_room,
)
from foredraft.errors import CapacityError

EVEN = Needs(layers=(10,) * 8, ends=7, cache=5, working=3)
"""With everything on the device 95 bytes, with two buffers and nothing else 35."""


def choose(free: int, wanted: int = AUTOMATIC, needs: Needs = EVEN) -> frozenset[int]:
    return choose_streamed(needs, free, wanted, "tiny")


def test_all_layers_stay_where_they_fit() -> None:
    assert choose(95) == choose(1000) == frozenset()


def test_one_byte_less_makes_room_for_two_buffers_and_streams_three() -> None:
    assert len(choose(94)) == 3, "one or two layers would fill the buffers and need as much as staying"
    assert EVEN.with_streamed(choose(94)) == 85


@pytest.mark.parametrize(("free", "streamed"), [(85, 3), (84, 4), (75, 4), (45, 7), (44, 8), (35, 8)])
def test_every_layer_that_fits_stays(free: int, streamed: int) -> None:
    assert len(choose(free)) == streamed


@pytest.mark.parametrize("wanted", range(1, 11))
def test_a_number_is_taken_at_its_word(wanted: int) -> None:
    assert len(choose(1000, wanted)) == max(0, 8 - wanted)


def test_who_names_a_number_vouches_for_the_working_room() -> None:
    assert len(choose(85 - EVEN.working, 5)) == 3
    with pytest.raises(CapacityError):
        choose(84 - EVEN.working, 5)


def test_too_large_a_number_is_answered_with_the_largest_that_fits() -> None:
    with pytest.raises(CapacityError, match="tiny with 6 of 8 layers on the device needs") as caught:
        choose(60, 6)
    assert caught.value.hint is not None
    assert "--gpu-layers 2," in caught.value.hint
    assert len(choose(60, 2)) == len(choose(60)) == 6


@pytest.mark.parametrize("wanted", [AUTOMATIC, 4])
def test_too_small_for_two_layers_is_an_error_that_says_what_takes_the_room(wanted: int) -> None:
    needs = Needs(layers=(10**9,) * 4, ends=3 * 10**9, cache=5 * 10**9, working=10**8)
    with pytest.raises(CapacityError) as caught:
        choose(10**9, wanted, needs)
    message, hint = caught.value.message, caught.value.hint or ""
    for part in ("10.10 GB", "1.00 GB are free", "5.00 GB for the KV cache", "0.10 GB of working memory"):
        assert part in message
    assert "3.00 GB for embeddings and head, 2.00 GB for two layers" in message
    assert all(way in hint for way in ("--ctx", "--batch", "--gpu-layers 0"))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 900))
def test_what_is_chosen_fits_and_nothing_smaller_does(layers: list[int], free: int) -> None:
    needs = Needs(tuple(layers), ends=7, cache=5, working=3)
    fits = [needs.with_streamed(spread(n, len(layers))) <= free for n in range(len(layers) + 1)]
    if not any(fits):
        with pytest.raises(CapacityError):
            choose(free, needs=needs)
        return
    streamed = choose(free, needs=needs)
    assert needs.with_streamed(streamed) <= free
    assert len(streamed) == fits.index(True)


@given(st.integers(1, 100), st.data())
def test_streamed_layers_are_spread_evenly(layers: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, layers))
    places = sorted(spread(count, layers))
    assert len(places) == count
    assert places[-1] == layers - 1
    gaps = [second - first for first, second in zip([-1, *places], places, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_working_room_grows_with_what_a_forward_holds() -> None:
    config = SimpleNamespace(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=300
    )

    def room(**changes: int) -> int:
        usual = {"rows": 32, "wanted": 8, "context_length": 256, "item": 2}
        return working_room(config, 16, **usual | changes)

    assert room(wanted=9) - room() == 300 * (2 + 4)
    assert room(context_length=257) - room() == 32 * 2 * 3
    assert room(rows=64, wanted=16) == 2 * room()
    assert room(item=4) > room()


@pytest.mark.parametrize(
    ("count", "said"), [(124_000, "0.124 MB"), (9_999_000, "9.999 MB"), (2_180_000_000, "2.18 GB")]
)
def test_sizes_are_said_in_words(count: int, said: str) -> None:
    assert size(count) == said
