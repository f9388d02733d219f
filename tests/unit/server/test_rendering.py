"""JSON in pieces is the JSON in one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foredraft.server import rendering

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=60,
)


@given(value=values, few=st.integers(0, 5), size=st.integers(1, 4))
def test_it_is_what_one_encoder_makes_of_it(value: Any, few: int, size: int) -> None:
    def once() -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    kept = rendering.FEW, rendering.SLICE
    rendering.FEW, rendering.SLICE = few, size
    try:
        assert "".join(rendering.pieces(value)) == once()
    finally:
        rendering.FEW, rendering.SLICE = kept


def test_no_piece_is_large() -> None:
    entry = {"token": "a", "top_logprobs": [{"token": "b", "logprob": -1.5}] * 20}
    answer = {"id": "x", "choices": [{"logprobs": {"content": [entry] * 500}} for _ in range(3)]}
    made = list(rendering.pieces(answer))
    assert json.loads("".join(made)) == answer
    assert max(map(len, made)) < 100_000 < len("".join(made))
