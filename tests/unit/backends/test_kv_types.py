"""Which types K and V have."""

from __future__ import annotations

import pytest

from foredraft.backends.llamacpp.kv_types import automatic_types, named_types, row_by_row
from foredraft.errors import ConfigError


@pytest.mark.parametrize(
    ("value_size", "instructions", "types"),
    [
        (64, {"avx2"}, ("bf16", "f16")),
        (64, {"avx512f", "avx512_bf16"}, ("bf16", "f16")),
        (64, {"avx512f", "avx512_fp16"}, ("bf16", "bf16")),
        (192, {"avx512f", "avx512_fp16"}, ("bf16", "bf16")),
        (128, {"avx512f", "avx512_fp16"}, ("bf16", "f16")),
        (256, {"avx512f", "avx512_fp16"}, ("bf16", "f16")),
    ],
)
def test_v_is_the_finest_type_that_is_fast(
    value_size: int, instructions: set[str], types: tuple[str, str]
) -> None:
    assert automatic_types("cpu", value_size, instructions, flash_attention=True) == types
    assert row_by_row(types)


def test_elsewhere_it_is_what_every_kernel_has() -> None:
    assert automatic_types("gpu", 64, {"avx512_fp16"}, flash_attention=True) == ("f16", "f16")
    assert automatic_types("cpu", 64, {"avx512_fp16"}, flash_attention=False) == ("f16", "f16")
    assert not row_by_row(("f16", "f16"))
    assert not row_by_row(("f32", "f32"))


def test_types_are_named_together_or_apart() -> None:
    assert named_types("auto") is None
    assert named_types("q8_0") == ("q8_0", "q8_0")
    assert named_types("bf16/f16") == ("bf16", "f16")
    with pytest.raises(ConfigError, match="no KV cache type 'f17'") as caught:
        named_types("bf16/f17")
    assert "q8_0" in (caught.value.hint or "")


def test_foredraft_s_own_attention_reads_f16_as_fast() -> None:
    instructions = {"avx512f", "avx512_fp16"}
    assert automatic_types("cpu", 64, instructions, flash_attention=True)[1] == "bf16"
    assert automatic_types("cpu", 64, instructions, flash_attention=True, own_kernel=True)[1] == "f16"
