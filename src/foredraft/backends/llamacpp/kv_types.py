"""Number formats of the KV cache: those of llama.cpp, and the choice of "auto".

On a processor llama.cpp has kernels for K and V of the same type, f16 or f32, whose results depend on the
batch size; all other pairs are computed row by row (docs/exactness.md). So K is bf16, and V is f16, the more
precise one.

With AVX512-FP16, llama.cpp processes f16 in steps of 128 numbers and the remainder one by one. A head of 64
is all remainder: attention to 1,024 tokens took 2.6 times as long with V in f16 as in bf16. Foredraft's own
kernel (`kernels`) is equally fast with both.
"""

from __future__ import annotations

from collections.abc import Set

from foredraft.backends.llamacpp import devices
from foredraft.errors import ConfigError

KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7}
"""ggml's numbers of the types that a cache can have."""

EVERYWHERE = ("f16", "f16")
"""K and V that every kernel supports."""

_FP16_STEP = 128  # ggml's simd-mappings.h: GGML_F16_STEP with AVX512-FP16


def named_types(kv_type: str) -> tuple[str, str] | None:
    """K and V as the user named them, or None for "auto". Raises ConfigError for an unknown type."""
    if kv_type == "auto":
        return None
    key, slash, value = kv_type.partition("/")
    value = value if slash else key
    for name in (key, value):
        if name not in KV_TYPES:
            raise ConfigError(
                f"There is no KV cache type {name!r}.",
                hint=f"Valid types: auto, {', '.join(KV_TYPES)} or K/V.",
            )
    return key, value


def automatic_types(
    device: str, value_size: int, instructions: Set[str], *, flash_attention: bool, own_kernel: bool = False
) -> tuple[str, str]:
    """K and V for heads of `value_size` numbers, on a processor with these `instructions` (Linux's names);
    `own_kernel`: whether Foredraft's attention kernel is in use.
    """
    if device != devices.CPU or not flash_attention:
        return EVERYWHERE
    slow = not own_kernel and "avx512_fp16" in instructions and value_size % _FP16_STEP
    return "bf16", "bf16" if slow else "f16"


def row_by_row(types: tuple[str, str]) -> bool:
    """Whether flash attention processes the rows of such a cache one by one."""
    key, value = types
    return key != value or key == "bf16"
