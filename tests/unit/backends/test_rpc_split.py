"""A model split over two processes writes the same text, with drafts and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from foredraft import Engine
from gguf_factory import tiny_llama
from rpc_process import needs_library, rpc_server

pytestmark = needs_library

PROMPT = "the cat sat on the mat. the cat sat on the mat. the cat"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rpc_server(tmp_path_factory.mktemp("cache")) as (address, _):
        yield address


@pytest.fixture(scope="module", params=["f32", "q4_0"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With our kernels, weights of the second lie in panels, also on the host."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", layers=4, weight_type=request.param)


def text_of(
    path: Path,
    cache: Path,
    speculate: str,
    *,
    temperature: float = 0.0,
    hosts: Sequence[str] = (),
    layers: int = -1,
) -> str:
    with Engine.load(
        path,
        speculate=speculate,
        threads=1,
        cache_dir=cache,
        context_length=256,
        rpc=hosts,
        gpu_layers=layers,
    ) as engine:
        return engine.generate(PROMPT, max_tokens=40, temperature=temperature, seed=1).text


@pytest.mark.parametrize("layers", [-1, 2])
def test_the_text_of_a_split_model_is_that_of_one_machine(
    tiny: Path, host: str, tmp_path: Path, layers: int
) -> None:
    for speculate in ("off", "suffix:max=8"):
        for temperature in (0.0, 0.9):
            expected = text_of(tiny, tmp_path, "off", temperature=temperature)
            found = text_of(tiny, tmp_path, speculate, temperature=temperature, hosts=[host], layers=layers)
            assert found == expected


def test_a_model_on_two_hosts(tiny: Path, host: str, tmp_path: Path) -> None:
    with rpc_server(tmp_path) as (other, _):
        for layers in (-1, 3):
            found = text_of(tiny, tmp_path, "suffix:max=8", hosts=[host, other], layers=layers)
            assert found == text_of(tiny, tmp_path, "off")


def test_the_model_says_where_it_is_and_whether_it_is_exact(tiny: Path, host: str, tmp_path: Path) -> None:
    with Engine.load(
        tiny, threads=1, cache_dir=tmp_path, context_length=256, rpc=host, gpu_layers=2
    ) as engine:
        info = engine.model.info
        assert info.device == f"RPC0[{host}]"
        assert info.settings["gpu_layers"] == "2"
        split = engine.model.capabilities
    with Engine.load(tiny, threads=1, cache_dir=tmp_path, context_length=256) as engine:
        alone = engine.model.capabilities
    assert split.batch_invariant == alone.batch_invariant, split.invariance_note
    assert split.snapshot_key != alone.snapshot_key
