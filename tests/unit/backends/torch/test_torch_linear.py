"""Products: a row's result does not depend on how many rows there are; weights are not held twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft.backends.torch.exact_sizes import telling_weight
from foredraft.backends.torch.linear import (
    choose_linear,
    drop_weights,
    packed_linear,
    plain_linear,
    replace_products,
)
from foredraft.errors import UnsupportedModelError

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (576, 192), (17, 5), (1536, 576)])
def test_packed_rows_have_the_same_bits_in_any_company(
    inputs: int, outputs: int, biased: bool, dtype: Any
) -> None:
    """Whatever the kernels here do: with AVX-512 a single row of 1,536 numbers in fp32 is added up
    in another order than two, with AMX 33 rows of bf16 in another than 32."""
    if choose_linear(dtype, CPU) is not packed_linear:
        pytest.skip("not multiplied so here")
    weight, one = telling_weight(outputs, inputs, dtype)
    generator = torch.Generator().manual_seed(0)
    bias = torch.randn(outputs, generator=generator).to(dtype) if biased else None
    rows = torch.cat([one, torch.randn(599, inputs, generator=generator).to(dtype)])
    packed = packed_linear(weight, bias)
    single = torch.cat([packed(row[None]) for row in rows])
    for count in (2, 3, 4, 5, 8, 16, 17, 33, 63, 129, 513, 600):
        assert torch.equal(packed(rows[:count]), single[:count]), count
        assert torch.equal(packed(one.expand(count, -1)), single[:1].expand(count, -1)), count
    close = {"atol": 1e-3, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.2, "rtol": 0.02}
    torch.testing.assert_close(single, plain_linear(weight, bias)(rows), **close)


def test_a_processor_packs_and_other_devices_do_not() -> None:
    assert choose_linear(torch.float32, CPU) is packed_linear
    assert choose_linear(torch.float32, torch.device("meta")) is plain_linear


def test_without_onednn_the_products_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("foredraft.backends.torch.linear.packed_linear", missing)
    assert choose_linear(torch.float32, CPU) is plain_linear


class TwoLayers(torch.nn.Module):  # type: ignore[misc]
    """The second layer is read by the model itself if `reads`."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.reads = reads

    def forward(self, rows: Any) -> Any:
        rows = self.first(rows)
        return rows @ self.second.weight if self.reads else self.second(rows)


@pytest.mark.parametrize("reads", [False, True])
def test_weights_are_dropped_where_nobody_reads_them(reads: bool) -> None:
    model, rows = TwoLayers(reads=reads), torch.randn(3, 4)
    with torch.inference_mode():
        expected = model(rows)
        replaced = replace_products(model, packed_linear)

        def check() -> None:
            if not torch.allclose(model(rows), expected, atol=1e-5):
                raise UnsupportedModelError("not the same")

        drop_weights(replaced, check)
        check()
    assert model.first.weight.numel() == (16 if reads else 0)


def test_layers_that_share_their_weights_share_the_product() -> None:
    """Zamba has one block in many places, whose weights must not be laid out for each."""
    model, rows = TwoLayers(reads=False), torch.randn(3, 4)
    model.second.weight, model.second.bias = model.first.weight, model.first.bias
    model.other = torch.nn.Linear(4, 4, bias=False)
    model.other.weight = model.first.weight
    made = []

    def linear(weight: Any, bias: Any) -> Any:
        made.append(bias)
        return plain_linear(weight, bias)

    with torch.inference_mode():
        expected = model(rows)
        replaced = replace_products(model, linear)
        assert [module for module, _ in replaced] == [model.first, model.second, model.other]
        assert torch.equal(model(rows), expected)
    assert len(made) == 2, "the third has no bias"
