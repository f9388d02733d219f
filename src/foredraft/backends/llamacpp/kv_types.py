"""Number formats of the KV cache: which llama.cpp has, and which "auto" takes.

On a processor llama.cpp has kernels for K and V of one type, f16 or f32, whose results depend on the batch
size; all other pairs are attended to row by row (docs/exactness.md). K is bf16 then, and V is f16: the finer
one.

Where the processor has AVX512-FP16, llama.cpp handles f16 in steps of 128 numbers and computes what is left
over one by one. A head of 64 is nothing but left over: attention to 1,024 tokens took 2.6 times as long with
V in f16 as in bf16. Foredraft's own kernel (`kernels`) reads either as fast.
"""

from __future__ import annotations

from collections.abc import Set

from foredraft.errors import ConfigError

KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7}
"""ggml's numbers of the types that a cache can have."""

EVERYWHERE = ("f16", "f16")
"""K and V that every kernel takes."""

_FP16_STEP = 128  # ggml's simd-mappings.h: GGML_F16_STEP with AVX512-FP16


def named_types(kv_type: str) -> tuple[str, str] | None:
    """K and V as the user names them, or None for "auto". Raises ConfigError for a type that there is not."""
    if kv_type == "auto":
        return None
    key, slash, value = kv_type.partition("/")
    value = value if slash else key
    for name in (key, value):
        if name not in KV_TYPES:
            raise ConfigError(
                f"There is no KV cache type {name!r}.",
                hint=f"Valid are: auto, {', '.join(KV_TYPES)} or K/V.",
            )
    return key, value


def automatic_types(
    device: str, value_size: int, instructions: Set[str], *, flash_attention: bool, own_kernel: bool = False
) -> tuple[str, str]:
    """K and V for heads of `value_size` numbers, on a processor with these `instructions` (Linux's names);
    `own_kernel`: Foredraft's attention was compiled in.
    """
    if device != "cpu" or not flash_attention:
        return EVERYWHERE
    slow = not own_kernel and "avx512_fp16" in instructions and value_size % _FP16_STEP
    return "bf16", "bf16" if slow else "f16"


def row_by_row(types: tuple[str, str]) -> bool:
    """Whether flash attention takes the rows of such a cache one by one."""
    key, value = types
    return key != value or key == "bf16"
