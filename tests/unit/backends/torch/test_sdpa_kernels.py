"""torch's switches for attention are the process's: set while a forward runs on a GPU, and put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from foredraft.backends.torch.sdpa_kernels import attention_kernels

CUDA = torch.device("cuda")
RESTRICTED = (False, False, True, True)


def switches() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return (
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )


@pytest.fixture(autouse=True)
def _all_on() -> Iterator[None]:
    cuda = torch.backends.cuda
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(True)
    yield
    cuda.enable_cudnn_sdp(before)


def test_no_kernel_is_left_that_needs_a_plan_for_each_number_of_cells() -> None:
    before = switches()
    assert before != RESTRICTED
    with attention_kernels(CUDA):
        assert switches() == RESTRICTED
    assert switches() == before


def test_elsewhere_nothing_changes() -> None:
    before = switches()
    with attention_kernels(torch.device("cpu")):
        assert switches() == before


def test_two_forwards_at_once_are_both_restricted_and_then_all_is_as_before() -> None:
    """One begins, another begins, the first ends: as in two threads with a model each."""
    before = switches()
    first, second = attention_kernels(CUDA), attention_kernels(CUDA)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert switches() == RESTRICTED
    second.__exit__(None, None, None)
    assert switches() == before


def test_a_forward_that_fails_puts_them_back() -> None:
    before = switches()
    with pytest.raises(RuntimeError), attention_kernels(CUDA):
        raise RuntimeError
    assert switches() == before
