"""The hidden states of a GGUF: which files have which, what is said of others, and that keys tell apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_factory
import gguf_hybrids
import gguf_windows
from foredraft.backends.llamacpp import BACKEND, binding, ext, features, loading, trial
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import ModelOptions
from foredraft.engine.profile_store import ProfileStore, key_of
from foredraft.errors import BackendError, ConfigError, MissingDependencyError, UnsupportedModelError
from foredraft.protocols import Model
from foredraft.types import Rows

PROMPTS = [[7, 8], [20, 21, 22], [33], [40, 41, 42, 43]]
NEXT = [[50, 51, 52], [60], [70, 71], [80, 81, 82, 83, 84]]
FILES: dict[str, Callable[[Path], Path]] = {
    "llama": gguf_factory.tiny_llama,
    "gemma3": gguf_windows.tiny_gemma3,
    "lfm2": gguf_hybrids.tiny_lfm2,
}


def load(path: Path, **options: Any) -> Model:
    return BACKEND.load(path, ModelOptions(**{"threads": 1, "probe": False, "gpu_layers": 0, **options}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return gguf_factory.tiny_llama(folder / "tiny.gguf", layers=3, weight_type="q4_0")


@pytest.fixture(scope="module")
def predicting(folder: Path) -> Path:
    return gguf_hybrids.tiny_qwen35(folder / "predicting.gguf", following=1)


def test_names() -> None:
    assert [features.number_of(name) for name in ("next", "layer:0", "layer:17")] == [None, 0, 17]
    assert features.layer(17) == "layer:17"
    for name in ("", "layer", "layer:", "layer:-1", "layer:x", "last", "17"):
        with pytest.raises(ConfigError):
            features.number_of(name)


def test_which_files_have_layers_for_multi_token_prediction(tiny: Path, predicting: Path) -> None:
    assert BACKEND.features_for(tiny, None) == ()
    assert BACKEND.features_for(predicting, None) == ("next",)
    assert features.next_layers(read_gguf(predicting)) == 1


def test_layers_that_llama_cpp_cannot_use_do_not_count(folder: Path) -> None:
    several = gguf_hybrids.tiny_qwen35(folder / "several.gguf", following=2)  # it asserts that there is one
    assert BACKEND.features_for(several, None) == ()
    stated = gguf_factory.tiny_llama(
        folder / "stated.gguf", edit=lambda writer: writer.add_uint32("llama.nextn_predict_layers", 1)
    )
    assert BACKEND.features_for(stated, None) == ()


@pytest.mark.parametrize("watch", [("layer:1",), ("layer:0", "layer:1"), ("next",), ("layer:7",)])
@pytest.mark.parametrize("architecture", sorted(FILES))
def test_what_a_model_cannot_return_is_refused_in_words(
    folder: Path, architecture: str, watch: tuple[str, ...]
) -> None:
    path = folder / f"{architecture}.gguf"
    if not path.exists():
        FILES[architecture](path)
    possible = architecture in features.WITH_LAYER_INPUTS and watch[0] in ("layer:0", "layer:1")
    if possible:
        model = load(path, watch=watch)
        model.forward([Rows(0, 0, (20, 21), 1)])
        assert model.features().shape == (2, len(watch) * model.capabilities.feature_size)
        model.close()
        return
    with pytest.raises(UnsupportedModelError) as caught:
        load(path, watch=watch)
    assert caught.value.hint
    load(path).close()


def test_a_library_without_the_functions_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def __getattr__(self, name: str) -> Any:
            if "nextn" in name or "layer_inp" in name:
                raise AttributeError(name)
            return getattr(binding.library().handle, name)

    ext.functions.cache_clear()
    with pytest.raises(MissingDependencyError, match="llama_set_embeddings_nextn"):
        ext._bound(Without(), "llama_set_embeddings_nextn")  # type: ignore[arg-type]
    monkeypatch.setattr(ext, "_FUNCTIONS", {"llama_nonesuch": (None, (), "_Z3abc", "?abc@@YAXXZ")})
    with pytest.raises(MissingDependencyError):
        load(tiny, watch=("layer:1",), cache_dir=None)
    ext.functions.cache_clear()


def test_measurements_are_told_apart(tiny: Path, tmp_path: Path) -> None:
    plain = loading.ContextSettings(64, 1, 1, 64, 64, ("bf16", "f16"), "auto", "cpu")
    watched = loading.ContextSettings(
        64, 1, 1, 64, 64, ("bf16", "f16"), "auto", "cpu", watch=("layer:1", "layer:2")
    )
    assert watched.key() == f"{plain.key()}".replace("64|1", "64|1|watch layer:1, layer:2")
    models = [load(tiny, watch=watch) for watch in ((), ("layer:1",), ("layer:2",))]
    keys = [key_of(model.info) for model in models]
    assert [key.watch for key in keys] == ["", "layer:1", "layer:2"]
    store = ProfileStore(tmp_path)
    assert len({store._path(key) for key in keys}) == 3
    assert len({model.capabilities.snapshot_key for model in models}) == 3
    for model in models:
        model.close()


def test_the_trial_loads_what_is_watched(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = read_gguf(tiny)
    plain, watched = ModelOptions(), ModelOptions(watch=("layer:1",))
    assert trial._identity([summary], plain) != trial._identity([summary], watched)
    given = list[Any]()

    class Children:
        def __enter__(self) -> Children:
            return self

        def __exit__(self, *_: object) -> None: ...

        def call(self, *arguments: Any, seconds: float) -> None:
            given.append(arguments)

    monkeypatch.setattr(trial, "start_children", Children)
    trial._known.clear()
    trial.admit(summary, watched)
    assert given[0][-1] == ["layer:1"]


def test_padding_rows_do_not_show(tiny: Path) -> None:
    model = load(tiny, watch=("layer:2", "layer:1"), sequences=len(PROMPTS))
    assert isinstance(model, LlamaCppModel)
    model.with_capabilities(batch_invariant=True)
    expected = []
    for seq, prompt in enumerate(PROMPTS):
        model.forward([Rows(seq, 0, [*prompt, *NEXT[seq]], 1)])
        expected.append(model.features()[len(prompt) :].copy())
    model._evened = lambda sizes: max(sizes.values())  # type: ignore[method-assign]
    model._streams.pays = lambda _: False  # type: ignore[method-assign, assignment]
    for order in ((0, 1), (1, 0), (0, 2), (0, 3), (3, 1, 0), (0, 1, 2, 3)):
        for seq, prompt in enumerate(PROMPTS):
            model.release(seq)
            model.forward([Rows(seq, 0, prompt, 0)])
        model.forward([Rows(seq, len(PROMPTS[seq]), NEXT[seq], len(NEXT[seq])) for seq in order])
        assert {count for _, count in model._laid} == {max(len(NEXT[seq]) for seq in order)}
        assert len(model._laid) == max(order) - min(order) + 1
        assert np.array_equal(model.features(), np.concatenate([expected[seq] for seq in order])), order
    model.close()


@pytest.mark.parametrize("ubatch", [16, 64])
def test_a_forward_of_several_parts(tiny: Path, ubatch: int) -> None:
    model = load(tiny, watch=("layer:2",), sequences=3, batch=64, ubatch=ubatch)
    tokens = np.random.default_rng(0).integers(20, 200, 60).tolist()
    model.forward([Rows(seq, 0, tokens[:count], 0) for seq, count in ((2, 21), (0, 9), (1, 30))])
    found = model.features().copy()
    model.release(1)
    single = []
    for i, token in enumerate(tokens[:30]):
        model.forward([Rows(1, i, (token,), 0)])
        single.append(model.features().copy())
    expected = np.concatenate(single)
    places = [*range(21), *range(9), *range(30)]
    assert np.allclose(found, expected[places], rtol=1e-3, atol=1e-3)
    model.close()


def test_sequences_that_moved_keep_their_rows(tiny: Path) -> None:
    model = load(tiny, watch=("layer:1",), sequences=6)
    assert isinstance(model, LlamaCppModel)
    tokens = np.random.default_rng(1).integers(20, 200, 12).tolist()
    for seq in (0, 3, 5):
        model.forward([Rows(seq, 0, tokens[seq : seq + 4], 0)])
    expected = []
    for seq in (5, 0, 3):
        model.forward([Rows(seq, 4, tokens[seq : seq + 2], 1)])
        expected.append(model.features().copy())
        model.truncate(seq, 4)
    model._streams.pays = lambda _: True  # type: ignore[method-assign, assignment]
    model.forward([Rows(seq, 4, tokens[seq : seq + 2], 1) for seq in (5, 0, 3)])
    assert model._streams.of != list(range(6))
    assert np.array_equal(model.features(), np.concatenate(expected))
    model.close()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("name", "watch"), [("tiny", ("layer:1", "layer:2")), ("predicting", ("next", "layer:1"))]
)
def test_weights_are_shared_by_one_that_watches_and_one_that_does_not(
    request: pytest.FixtureRequest, name: str, watch: tuple[str, ...], first: int
) -> None:
    path = request.getfixturevalue(name)
    model, alone = load(path, watch=watch, sequences=3), load(path, sequences=2)
    other = model.unwatched(2)  # type: ignore[attr-defined]
    assert (other.capabilities.features, other.capabilities.sequences) == ((), 2)
    assert other.info.settings == alone.info.settings
    for seq, prompt in enumerate(PROMPTS[:2]):
        rows = [Rows(seq, 0, prompt, len(prompt))]
        wanted = alone.forward(rows)
        assert np.array_equal(model.forward(rows), wanted)
        assert np.array_equal(other.forward(rows), wanted)
    pair = (model, other)
    pair[first].close()
    assert np.array_equal(
        pair[1 - first].forward([Rows(0, 2, (9,), 1)]), alone.forward([Rows(0, 2, (9,), 1)])
    )
    pair[1 - first].close()
    with pytest.raises(BackendError, match="closed"):
        model.unwatched(1)  # type: ignore[attr-defined]
    alone.close()
