"""What a forward leaves that failed half way: no features, no rows, and nothing that spoils later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_adapters
import gguf_factory
import gguf_hybrids
import gguf_mimo
from foredraft.backends.llamacpp import BACKEND, sequence_state
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.rpc.library import Hosts
from foredraft.config import ModelOptions
from foredraft.errors import BackendError, HostLostError
from foredraft.images import Image, ImageSpan, spans_within
from foredraft.library.adapter_files import adapters_of
from foredraft.protocols import Model
from foredraft.types import HeadRows, Rows
from gguf_vision import llava, qwen2vl, qwen35
from head_cases import rows, states

TEXT, OTHER = [30, 31, 32, 33, 34], [40, 41, 42]
ABORTED = 2
"""llama.cpp's status where the abort callback said so."""


def load(path: Path, **changes: Any) -> Model:
    values: dict[str, Any] = {"threads": 1, "gpu_layers": 0, "sequences": 3, "probe": False}
    return BACKEND.load(path, ModelOptions(**{**values, **changes}))


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, number: int, how: object = KeyboardInterrupt) -> Iterator[None]:
    """Within, the llama_decode of this number fails once it has computed: it raises, or returns a status."""
    decode, count = lib.llama_decode, 0

    def counted(context: Any, batch: Any) -> Any:
        nonlocal count
        count += 1
        status = decode(context, batch)
        if count != number:
            return status
        if how is KeyboardInterrupt:
            raise KeyboardInterrupt
        return how

    with monkeypatch.context() as patched:
        patched.setattr(lib, "llama_decode", counted)
        with pytest.raises(KeyboardInterrupt if how is KeyboardInterrupt else BackendError):
            yield
    assert count >= number


def prompt(model: Model) -> Rows:
    """Text, an image, and text, in sequence 0."""
    assert model.vision is not None
    pixels = np.random.default_rng(0).integers(0, 256, (150, 170, 3), np.uint8)
    image = model.vision.prepare(Image(pixels))
    spans = [ImageSpan(3 + first, count, image, run) for run, (first, count) in enumerate(image.runs)]
    return Rows(0, 0, [*TEXT[:3], *image.tokens, *TEXT], 1, images=spans)


def without_features(model: Model) -> None:
    for asked in (None, [0], [2, 1]):
        with pytest.raises(BackendError, match="the last forward failed"):
            model.features(asked)


@pytest.mark.parametrize("how", [KeyboardInterrupt, ABORTED])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_no_features_of_a_prompt_with_an_image(
    number: int, how: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, two parts of an image, and text beside another sequence's: a decode each."""
    model = load(llava(tmp_path / "l"), watch=("layer:1",))
    batch = [prompt(model), Rows(1, 0, OTHER, 1)]
    expected = model.forward(batch).copy()
    features = model.features().copy()
    for seq in range(2):
        model.release(seq)
    model.forward([Rows(2, 0, TEXT, 0)])  # whose features must not be taken for those of the next
    with failing(monkeypatch, number, how):
        model.forward(batch)
    without_features(model)
    assert [model.length(seq) for seq in range(3)] == [0, 0, len(TEXT)]
    assert np.array_equal(model.forward(batch), expected)
    assert np.array_equal(model.features(), features)
    model.close()


@pytest.mark.parametrize("number", [1, 2])
def test_no_features_of_a_forward_with_several_adapters(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = gguf_factory.tiny_llama(tmp_path / "base.gguf", weight_type="q8_0", mixing=0.5)
    adapter = gguf_adapters.lora(tmp_path / "one.gguf", base)
    model = load(base, watch=("layer:1",), adapters=adapters_of({"one": [str(adapter)]}))
    model.adapt(1, "one")
    batch = [Rows(1, 0, TEXT, 1), Rows(0, 0, OTHER, 1)]
    expected = model.forward(batch).copy()
    features = model.features().copy()
    for seq in range(2):
        model.release(seq)
    model.forward([Rows(2, 0, TEXT, 0)])
    with failing(monkeypatch, number):
        model.forward(batch)
    without_features(model)
    assert [model.length(seq) for seq in range(2)] == [0, 0]
    assert np.array_equal(model.forward(batch), expected)
    assert np.array_equal(model.features(), features)
    model.close()


def test_no_features_of_rows_that_were_refused(tmp_path: Path) -> None:
    model = load(gguf_factory.tiny_llama(tmp_path / "t.gguf"), watch=("layer:1",))
    model.forward([Rows(0, 0, TEXT, 0)])
    with pytest.raises(BackendError, match="start at"):
        model.forward([Rows(0, 1, TEXT, 0)])
    without_features(model)
    model.close()


def test_what_was_computed_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No logits came of it, so it may be no numbers, which spoil a row also where they are masked."""
    model = load(gguf_factory.tiny_llama(tmp_path / "t.gguf"), batch=16, ubatch=4)
    model.forward([Rows(0, 0, TEXT, 1)])
    cleared: list[int] = []
    clear = lib.llama_memory_clear

    def counted(*given: Any) -> Any:
        cleared.append(1)
        return clear(*given)

    monkeypatch.setattr(lib, "llama_memory_clear", counted)
    expected = model.forward([Rows(1, 0, OTHER, 1)]).copy()
    assert not cleared
    for how in (KeyboardInterrupt, ABORTED):
        model.release(1)
        with failing(monkeypatch, 1, how):
            model.forward([Rows(0, len(TEXT), [*TEXT, *TEXT], 1)])
        assert model.length(0) == len(TEXT)
        assert np.array_equal(model.forward([Rows(1, 0, OTHER, 1)]), expected)
        assert cleared.pop()
    model.close()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("make", [gguf_factory.tiny_llama, gguf_hybrids.tiny_qwen35])
def test_what_an_interrupt_of_the_overwriting_has_lost_is_not_taken_for_there(
    make: Callable[[Path], Path], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells are overwritten, and those in use put back one sequence after the other."""
    model = load(make(tmp_path / "t.gguf"))
    model.forward([Rows(seq, 0, TEXT, 1) for seq in range(3)])
    model.forward([Rows(1, len(TEXT), OTHER, len(OTHER))])
    model.truncate(1, len(TEXT) + 1)  # a recurrent state is to be computed again from the text's end
    with failing(monkeypatch, 1):
        model.forward([Rows(0, len(TEXT), OTHER, 1)])
    put_back, count = sequence_state.load, 0

    def interrupted(*given: Any) -> bool:
        nonlocal count
        count += 1
        if count == number:
            raise KeyboardInterrupt
        return put_back(*given)

    with monkeypatch.context() as patched:
        patched.setattr(sequence_state, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.forward([Rows(2, len(TEXT), OTHER, 1)])
    lengths = [model.length(seq) for seq in range(3)]
    assert lengths[1:] == ([0, 0] if number == 1 else [lengths[1], 0])
    assert lengths[0] == 0 or number > 1
    for seq in range(3):
        model.release(seq)
    expected = model.forward([Rows(0, 0, TEXT, 1)]).copy()
    assert np.array_equal(model.forward([Rows(1, 0, TEXT, 1)]), expected)
    model.close()


def test_an_image_goes_whole_where_its_beginning_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With M-RoPE a sequence cannot be cut inside an image."""
    model = load(qwen2vl(tmp_path / "q"))
    whole = prompt(model)
    expected = model.forward([whole]).copy()
    model.release(0)
    assert model.vision is not None
    cut = 3 + model.vision.chunk
    first = Rows(0, 0, whole.tokens[:cut], 0, images=spans_within(whole.images, 0, cut))
    end = len(whole.tokens)
    rest = Rows(0, cut, whole.tokens[cut:], 1, images=spans_within(whole.images, cut, end))
    model.forward([first])
    with failing(monkeypatch, 2, ABORTED):  # the text behind the image
        model.forward([rest])
    start = whole.images[0].start
    assert model.length(0) == start
    rest = Rows(0, start, whole.tokens[start:], 1, images=whole.images)
    assert np.array_equal(model.forward([rest]), expected)
    model.close()


def test_the_reason_of_a_failure_is_told_where_rows_cannot_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent state stays: the sequence is longer, and the interrupt is no error of a rollback."""
    model = load(qwen35(tmp_path / "q"))
    model.forward([Rows(0, 0, TEXT, 1)])
    whole = prompt(model)
    spans = [ImageSpan(span.start + len(TEXT), span.rows, span.image, span.run) for span in whole.images]
    with failing(monkeypatch, 4):
        model.forward([Rows(0, len(TEXT), whole.tokens, 1, images=spans)])
    assert model.length(0) > len(TEXT)
    model.release(0)
    model.close()


@pytest.mark.parametrize("make", [gguf_hybrids.tiny_lfm2, gguf_hybrids.tiny_qwen35])
def test_a_recurrent_state_that_went_on_is_not_taken_for_that_before(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp may report that the rows were dropped, and go on from the state behind them."""
    model = load(make(tmp_path / "m.gguf"))
    expected = model.forward([Rows(0, 0, TEXT, 1)]).copy()
    with failing(monkeypatch, 1):
        model.forward([Rows(0, len(TEXT), OTHER, 1), Rows(1, 0, OTHER, 1)])
    assert model.length(0) != len(TEXT)
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT))
    assert model.length(1) == 0
    model.release(0)
    for seq in range(2):
        assert np.array_equal(model.forward([Rows(seq, 0, TEXT, 1)]), expected)
    model.close()


def test_no_recurrent_state_is_left_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(qwen35(tmp_path / "q"))
    whole = prompt(model)
    expected = model.forward([whole]).copy()
    model.release(0)
    start = whole.images[0].start
    model.forward([Rows(0, 0, whole.tokens[:start], 0)])
    rest = Rows(0, start, whole.tokens[start:], 1, images=whole.images)
    with failing(monkeypatch, 1):  # rows of the image
        model.forward([rest])
    assert model.length(0) == 0
    assert np.array_equal(model.forward([whole]), expected)
    model.close()


def test_a_chained_heads_draft_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that failed leaves no token in the draft, of any sequence."""
    model = load(gguf_mimo.tiny_mimo2(tmp_path / "m.gguf", mixing=0.5), watch=("next",))
    head = model.load_head(None, sequences=2)
    features = states(model, [*TEXT, *OTHER])
    text = [*TEXT, *OTHER]
    given = [rows(seq, text, features, 1, len(text), 1) for seq in range(2)]
    steps = [[HeadRows(seq, len(text) + i, [50 + i], None, 1) for seq in range(2)] for i in range(2)]

    def draft() -> list[Any]:
        return [head.forward(step).copy() for step in steps]

    head.forward(given)
    expected = draft()
    for seq in range(2):
        head.release(seq)
    head.forward(given)
    with failing(monkeypatch, 2, ABORTED):  # of the second sequence
        head.forward(steps[0])
    assert [head.length(seq) for seq in range(2)] == [len(text)] * 2
    for found, right in zip(draft(), expected, strict=True):
        assert np.allclose(found, right, rtol=2e-2, atol=5e-2)
    model.close()


def test_a_prompt_is_released_where_its_host_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No logits have come of it, and no row can be computed any more that would tell what it holds."""
    model = load(gguf_factory.tiny_llama(tmp_path / "t.gguf"))
    model.forward([Rows(0, 0, TEXT, 0)])

    def lost(_: object) -> None:
        raise HostLostError("The RPC host is gone.")

    monkeypatch.setattr(Hosts, "check", lost)
    model.release(0)
    assert model.length(0) == 0
    model.close()
