"""Weights held in fp16: no bit lost, each row the same in any company, and transformers' text."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_factory
from foredraft import Engine
from foredraft.backends.torch import half
from foredraft.backends.torch.exact_sizes import telling_weight
from foredraft.backends.torch.half import choose_products, exact_sizes, half_linear
from foredraft.backends.torch.linear import choose_linear, packed_linear
from foredraft.protocols import Model
from foredraft.testing import ScriptedDrafter
from foredraft.types import Draft
from matrix import matrix, nightly
from model_cases import text_tokens
from torch_cases import greedy, load, reference

CPU = torch.device("cpu")
PROMPTS = [text_tokens(5, seed=3), [30, 31, 32] * 9, text_tokens(30, seed=5)]
TOKENS = 40

Make = Callable[..., Path]

needs_fbgemm = pytest.mark.skipif(not half._has_halves(), reason="torch without FBGEMM, or not exact here")


def draw(*shape: int, seed: int = 0, scale: float = 0.02) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


BORDERS = (*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Numbers of rows at which kernels may change."""


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@needs_fbgemm
@matrix(
    threads=[1, 2],
    shape=[(64, 576), (576, 96), (1536, 40), (577, 100), (17, 5)],
    biased=[False, True],
    ids={"shape": str, "biased": ["plain", "biased"]},
    indirect=["threads"],
)
def test_rows_have_the_same_bits_in_any_company(
    threads: int, shape: tuple[int, int], biased: bool, is_nightly: bool
) -> None:
    inputs, outputs = shape
    weight, bias = draw(outputs, inputs).bfloat16().float(), draw(outputs, seed=1) if biased else None
    rows = draw(250, inputs, seed=2, scale=1)
    made = half_linear(weight, bias)
    assert made is not None
    torch.set_num_threads(1)
    single = torch.cat([made(row[None]) for row in rows])
    torch.set_num_threads(threads)
    for count in (*(range(1, 130) if is_nightly else BORDERS), 240, 250):
        assert torch.equal(made(rows[:count]), single[:count]), count
        assert torch.equal(made(rows[-count:]), single[-count:]), count
    torch.testing.assert_close(single, torch.nn.functional.linear(rows, weight, bias), atol=1e-4, rtol=1e-5)


@needs_fbgemm
@pytest.mark.parametrize("shape", [(3, 4, 64), (0, 64), (1, 0, 64), (64,)], ids=str)
def test_shapes_are_those_of_any_product(shape: tuple[int, ...]) -> None:
    weight = draw(33, 64).half().float()
    made, rows = half_linear(weight), draw(*shape, seed=1, scale=1)
    assert made is not None
    torch.testing.assert_close(made(rows), torch.nn.functional.linear(rows, weight), atol=1e-5, rtol=1e-5)


@needs_fbgemm
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 300.0])
def test_no_bit_of_a_weight_is_lost(stored: Any, scale: float) -> None:
    """Each input picks a column of the weights, which must come out as it was stored."""
    weight = draw(40, 64, scale=scale).to(stored).float()
    weight[0, 0], weight[1, 1] = 0.0, -weight.abs().max()
    made = half_linear(weight)
    assert made is not None
    assert torch.equal(made(torch.eye(64)), weight.t())


@needs_fbgemm
@pytest.mark.parametrize(
    "weight",
    [
        draw(40, 64),
        torch.cat([draw(40, 64).half().float(), draw(1, 64)]),
        torch.tensor([[1.0, 2.0**-60]]),
        torch.tensor([[1.0, 2.0**100]]),
        torch.tensor([[2.0**-100, 0.0]]),
        torch.tensor([[1.0, float("inf")]]),
        torch.tensor([[1.0, float("nan")]]),
        torch.empty(0, 64),
    ],
    ids=[
        "fp32",
        "one row of fp32",
        "too far apart",
        "huge",
        "next to nothing",
        "infinite",
        "not a number",
        "empty",
    ],
)
def test_a_weight_that_would_lose_a_bit_is_refused(weight: Any) -> None:
    assert half_linear(weight) is None


@needs_fbgemm
def test_a_weight_of_nothing_gives_nothing() -> None:
    made = half_linear(torch.zeros(8, 16), torch.arange(8.0))
    assert made is not None
    assert torch.equal(made(torch.ones(2, 16)), torch.arange(8.0).expand(2, -1))


@needs_fbgemm
def test_sizes_are_padded_upwards_and_measured_once_for_each_number_of_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []

    def watched(outputs: int, inputs: int, dtype: Any) -> tuple[Any, Any]:
        measured.append(inputs)
        return telling_weight(outputs, inputs, dtype)

    monkeypatch.setattr(half, "telling_weight", watched)
    sizes = exact_sizes(93)  # of which no other test knows
    assert sizes is not None
    assert len(sizes) == half.MOST + 1
    assert all(count <= size <= half.MOST for count, size in enumerate(sizes))
    assert all(sizes[size] == size for size in sizes)
    half_linear(torch.ones(4, 93))
    half_linear(torch.ones(9, 93))
    assert measured == [93]


@needs_fbgemm
def test_what_is_said_is_what_was_made() -> None:
    products = choose_products(torch.float32, CPU)
    products(draw(4, 256))
    products(draw(4, 64).half().float())  # too small to pay
    assert products.describe() == "packed"
    products(draw(4, 256).half().float())
    assert products.describe() == "half, packed for 2 of 3 weights"
    assert products.copies
    halves = choose_products(torch.float32, CPU)
    halves(draw(4, 256).half().float())
    assert halves.describe() == "half"


@pytest.mark.parametrize(("dtype", "device"), [(torch.bfloat16, CPU), (torch.float32, torch.device("meta"))])
def test_only_fp32_on_a_processor_has_halves(dtype: Any, device: Any) -> None:
    products = choose_products(dtype, device)
    products(torch.zeros(4, 256, dtype=dtype, device=device))
    packed = choose_linear(dtype, device) is packed_linear
    assert products.describe() == ("packed" if packed else "plain")
    assert products.copies is packed


@pytest.mark.parametrize("missing", ["engine", "operator", "order"])
def test_without_fbgemm_products_are_as_they_were(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("Didn't find engine for operation quantized::linear_prepack_fp16")

    if missing == "engine":
        engines = type(torch.backends.quantized)
        monkeypatch.setattr(engines, "supported_engines", ["qnnpack", "none"])
    else:
        monkeypatch.setattr(half, "exact_sizes", refuse if missing == "operator" else lambda _: None)
    unknown = half._has_halves.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(half, "_has_halves", unknown)
    products = choose_products(torch.float32, CPU)
    rows, weight = draw(3, 256, seed=1), draw(4, 256).half().float()
    assert torch.equal(products(weight)(rows), packed_linear(weight)(rows))
    assert products.describe() == "packed"


# --- models --------------------------------------------------------------------------------------------


@pytest.fixture
def stored_in_bf16(folder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The folder of a tiny model whose weights were rounded to bf16 and stored so; none is too small."""
    monkeypatch.setattr(half, "LEAST_INPUTS", 1)

    def make(architecture: str) -> Path:
        source = reference(folder(architecture))
        source.bfloat16().save_pretrained(tmp_path / architecture)
        torch_factory.make_tokenizer().save_pretrained(tmp_path / architecture)
        return tmp_path / architecture

    return make


def guess(texts: list[list[int]]) -> ScriptedDrafter:
    def script(tokens: Any) -> Draft | None:
        for text in texts:
            if text[: len(tokens)] == list(tokens) and len(text) > len(tokens) + 3:
                a, b, c = text[len(tokens) : len(tokens) + 3]
                return Draft((a, b, c, 20 + (a + 1) % 100), "scripted")
        return None

    return ScriptedDrafter(script)


@needs_fbgemm
@pytest.mark.parametrize(
    "architecture",
    [
        *("llama", "gpt2", "falcon_h1"),
        *(pytest.param(name, marks=nightly) for name in ("qwen2", "qwen3", "gemma3", "mamba")),
    ],
)
def test_greedy_text_is_that_of_generate(stored_in_bf16: Make, architecture: str) -> None:
    path = stored_in_bf16(architecture)
    source = reference(path)
    expected = [greedy(source, prompt, TOKENS) for prompt in PROMPTS]
    drafter = guess([[*prompt, *text] for prompt, text in zip(PROMPTS, expected, strict=True)])
    model = load(path, "fp32", probe=True, sequences=2, context_length=600)
    assert model.info.settings["products"] == "half"
    assert model.capabilities.batch_invariant, model.capabilities.invariance_note
    assert model.capabilities.max_rows >= 63
    with Engine(model, drafters=[drafter] if model.capabilities.trees else []) as engine:
        results = [engine.generate(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
    assert [list(result.tokens) for result in results] == expected
    if model.capabilities.trees:
        assert sum(outcome.accepted for outcome in drafter.outcomes) > TOKENS


@needs_fbgemm
def test_what_was_measured_and_stored_is_not_mistaken_for_that_of_other_products(
    stored_in_bf16: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = stored_in_bf16("llama"), {"probe": True, "cache_dir": tmp_path / "cache"}

    def probes() -> int:
        return len(list((tmp_path / "cache" / "probes").iterdir()))

    def key(model: Model) -> str:
        found = model.capabilities.snapshot_key
        model.close()
        return str(found)

    halves = key(load(path, "fp32", **options))
    assert probes() == 1
    assert key(load(path, "fp32", **options)) == halves
    assert probes() == 1
    monkeypatch.setattr(half, "_has_halves", lambda: False)
    packed = load(path, "fp32", **options)
    assert packed.info.settings["products"] == "packed"
    assert key(packed) != halves
    assert probes() == 2


@needs_fbgemm
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_weights_are_held_once(stored_in_bf16: Make, architecture: str) -> None:
    """Of the tensors alive after loading none has the size of a weight that only products read."""
    path = stored_in_bf16(architecture)
    size = {"llama": 2 * 96 * 64, "gpt2": 4 * 64 * 64}[architecture]  # gate and up; into the MLP

    def alive() -> int:
        gc.collect()
        kinds = (torch.Tensor, torch.nn.Parameter)
        return sum(type(value) in kinds and value.numel() == size for value in gc.get_objects())

    before = alive()
    model = load(path, "fp32", context_length=100, sequences=3)  # whose KV cells are of another size
    assert model.info.settings["products"] == "half"
    assert alive() == before
    model.close()
