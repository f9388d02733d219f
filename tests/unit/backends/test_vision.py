"""GGUF models that see: llama.cpp's own results, positions, the mmproj file, and errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from foredraft.backends.llamacpp import BACKEND, mtmd
from foredraft.backends.llamacpp.binding import lib, library
from foredraft.backends.llamacpp.image_places import ImagePlaces
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.backends.llamacpp.vision import LlamaCppVision, _size, largest_compute_bytes
from foredraft.backends.llamacpp.vision_file import mmproj_of
from foredraft.config import ModelOptions
from foredraft.errors import (
    BackendError,
    ForedraftError,
    MissingDependencyError,
    ModelFormatError,
    ModelNotFoundError,
    RequestError,
    UnsupportedModelError,
)
from foredraft.images import Image, ImageSpan, PreparedImage, spans_within
from foredraft.library.mmproj import find_mmproj
from foredraft.types import Logits, Rows
from gguf_factory import tiny_llama
from gguf_vision import gemma3, llava, qwen2vl

FAMILIES: dict[str, Callable[[Path], Path]] = {"qwen2vl": qwen2vl, "gemma3": gemma3, "llava": llava}
TEXT = [30, 31, 32, 33, 34]


def picture(seed: int = 0, height: int = 150, width: int = 170) -> Image:
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    return Image(np.kron(blocks, np.ones((height // 5, width // 5, 1), np.uint8)))


def options(**changes: object) -> ModelOptions:
    values: dict[str, object] = {"threads": 1, "gpu_layers": 0, "sequences": 2, "probe": False}
    return ModelOptions(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("vision") / request.param)


@pytest.fixture(scope="module")
def loaded(path: Path) -> Iterator[LlamaCppModel]:
    model = BACKEND.load(path, options())
    assert isinstance(model, LlamaCppModel)
    yield model
    model.close()


@pytest.fixture
def model(loaded: LlamaCppModel) -> LlamaCppModel:
    for seq in range(2):
        loaded.release(seq)
    return loaded


def vision_of(model: LlamaCppModel) -> LlamaCppVision:
    assert isinstance(model.vision, LlamaCppVision)
    return model.vision


def prompt(image: PreparedImage) -> tuple[list[int], list[ImageSpan]]:
    """Text, the image, and text."""
    spans = [ImageSpan(3 + first, count, image, run) for run, (first, count) in enumerate(image.runs)]
    return [*TEXT[:3], *image.tokens, *TEXT], spans


def compute(model: LlamaCppModel, image: PreparedImage, seq: int = 0, *, logits: int = 1) -> Logits:
    tokens, spans = prompt(image)
    return model.forward([Rows(seq, 0, tokens, logits, images=spans)]).copy()


# --- what is computed ----------------------------------------------------------------------------------


def test_the_logits_are_those_of_llama_cpps_own_helper(model: LlamaCppModel) -> None:
    """Which evaluates the same prompt, tokenised as a text with a marker, in its own way."""
    vision, image = vision_of(model), picture()
    found = compute(model, vision.prepare(image))
    text = b"".join(model.tokenizer.token_bytes(token) for token in TEXT[:3])
    after = b"".join(model.tokenizer.token_bytes(token) for token in TEXT)
    functions, handle = mtmd.functions(), library().handle
    whole = text + functions.default_marker() + after
    chunks = functions.input_chunks_init()
    pixels = image.pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))
    bitmap = functions.bitmap_init(image.pixels.shape[1], image.pixels.shape[0], pixels)
    given = mtmd.InputText(whole, len(whole), False, False)
    assert functions.tokenize(vision._context, chunks, given, (ctypes.c_void_p * 1)(bitmap), 1) == 0
    evaluate = handle.mtmd_helper_eval_chunks
    pointer, whole_number = ctypes.c_void_p, ctypes.c_int32
    evaluate.argtypes = [pointer] * 3 + [whole_number] * 3 + [ctypes.c_bool, ctypes.POINTER(whole_number)]
    end = whole_number()
    model.release(1)
    chunk = vision.chunk or 512
    context = model._context
    assert evaluate(vision._context, context, chunks, 0, 1, chunk, True, ctypes.byref(end)) == 0
    size = model.info.vocab_size
    address = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
    theirs = np.ctypeslib.as_array(address, (1, size)).copy()
    functions.input_chunks_free(chunks)
    functions.bitmap_free(bitmap)
    lib.llama_memory_seq_rm(model._memory, 1, -1, -1)
    assert end.value == model._position(0, model.length(0))
    assert np.array_equal(found, theirs)


def test_rows_are_the_same_however_the_prompt_is_cut(model: LlamaCppModel) -> None:
    vision = vision_of(model)
    image = vision.prepare(picture())
    tokens, spans = prompt(image)
    whole = compute(model, image)
    run = spans[0]
    inside = range(run.start + vision.chunk, run.end, vision.chunk) if vision.chunk else ()
    cuts = [2, run.start, *inside, run.end]
    at = 0
    for end in [*cuts, len(tokens)]:
        rows = Rows(1, at, tokens[at:end], end == len(tokens), images=spans_within(spans, at, end))
        found = model.forward([rows])
        at = end
    assert np.array_equal(found, whole)


def test_beside_other_sequences(model: LlamaCppModel) -> None:
    image = vision_of(model).prepare(picture())
    alone = compute(model, image)
    beside = model.forward([Rows(1, 0, TEXT, 5)]).copy()
    for seq in range(2):
        model.release(seq)
    tokens, spans = prompt(image)
    both = model.forward([Rows(1, 0, TEXT, 5), Rows(0, 0, tokens, 1, images=spans)])
    assert np.array_equal(both, np.concatenate([beside, alone]))


def test_a_prompt_that_ends_with_an_image_has_logits(model: LlamaCppModel) -> None:
    vision = vision_of(model)
    image = vision.prepare(picture())
    first, count = image.runs[0]
    tokens = [30, *image.tokens[first : first + count]]
    spans = [ImageSpan(1, count, image)]
    ends = model.forward([Rows(0, 0, tokens, 1, images=spans), Rows(1, 0, TEXT, 2)])
    assert ends.shape == (3, model.info.vocab_size)
    assert np.isfinite(ends).all()
    following = model.forward([Rows(0, len(tokens), [31], 1)])
    assert not np.array_equal(ends[:1], following)


def test_truncate_fork_and_snapshots_keep_the_positions(model: LlamaCppModel) -> None:
    image = vision_of(model).prepare(picture())
    tokens, spans = prompt(image)
    expected = compute(model, image, logits=1)
    more = model.forward([Rows(0, len(tokens), TEXT, 5)]).copy()
    model.truncate(0, len(tokens))
    assert np.array_equal(model.forward([Rows(0, len(tokens), TEXT, 5)]), more)
    model.truncate(0, len(tokens))
    model.fork(0, 1, len(tokens))
    assert np.array_equal(model.forward([Rows(1, len(tokens), TEXT, 5)]), more)
    model.truncate(0, spans[-1].end)
    saved = model.snapshot(0)
    model.release(0)
    model.restore(0, saved)
    assert model.length(0) == spans[-1].end
    rest = Rows(0, spans[-1].end, tokens[spans[-1].end :], 1)
    assert np.array_equal(model.forward([rest]), expected)
    model.truncate(0, spans[0].start)
    again = Rows(0, spans[0].start, tokens[spans[0].start :], 1, images=spans)
    assert np.array_equal(model.forward([again]), expected)


def test_an_m_rope_sequence_is_not_cut_inside_an_image(model: LlamaCppModel) -> None:
    image = vision_of(model).prepare(picture())
    compute(model, image)
    inside = prompt(image)[1][0].start + 2
    if not vision_of(model).mrope:
        model.truncate(0, inside)
        return
    with pytest.raises(BackendError, match="inside an image"):
        model.truncate(0, inside)
    assert model.length(0) == len(prompt(image)[0])


def test_a_sequence_that_waits_inside_an_image(model: LlamaCppModel) -> None:
    """Others go on beside it, and it may be moved."""
    vision = vision_of(model)
    image = vision.prepare(picture())
    tokens, spans = prompt(image)
    expected = compute(model, image)
    if not vision.chunk:
        return
    model.release(0)
    at = spans[0].start + vision.chunk
    model.forward([Rows(0, 0, tokens[:at], 0, images=spans_within(spans, 0, at))])
    model.forward([Rows(1, 0, TEXT, 5)])
    saved = model.snapshot(0)
    model.release(0)
    model.restore(0, saved)
    assert model.length(0) == at
    rest = Rows(0, at, tokens[at:], 1, images=spans_within(spans, at, len(tokens)))
    assert np.array_equal(model.forward([rest, Rows(1, 5, TEXT, 5)])[:1], expected)


def test_places_of_images() -> None:
    places = ImagePlaces(2)
    places.add(0, 3, 10, 4)
    places.add(0, 3, 10, 4)  # the next chunk of the same image
    places.add(0, 15, 6, 6)
    assert [places.position(0, cells) for cells in (0, 3, 5, 12, 13, 15, 21, 25)] == [
        0,
        3,
        3,
        3,
        7,
        9,
        15,
        19,
    ]
    for cells in (0, 2, 3, 14, 15, 21, 25):
        assert places.cells(0, places.position(0, cells)) == cells
    assert places.cells(0, 4) == 13  # all rows of an image have its first position
    assert places.position(1, 25) == 25
    saved = bytearray(b"cells") + places.written(0, 25)
    assert places.read(1, saved) == (5, 25)
    assert places.position(1, 25) == 19
    places.cut(0, 14)
    assert places.position(0, 25) == 19
    places.cut(0, 3)
    assert places.position(0, 25) == 25


# --- encoding ------------------------------------------------------------------------------------------


def test_an_image_is_encoded_once(model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> None:
    vision = vision_of(model)
    first = vision.prepare(picture(1))
    assert vision.prepare(Image(picture(1).pixels.copy())) is first
    other = vision.prepare(picture(2))
    assert other.key != first.key
    monkeypatch.setattr("foredraft.backends.llamacpp.vision.KEPT_BYTES", 1)
    third = vision.prepare(picture(3))
    assert list(vision._kept) == [third.key]
    again = vision.prepare(picture(1))
    assert again.key == first.key
    mine, theirs = again.data, first.data
    assert isinstance(mine, tuple)
    assert isinstance(theirs, tuple)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(mine, theirs, strict=True))


def test_an_image_that_no_forward_holds(tmp_path: Path) -> None:
    model = BACKEND.load(gemma3(tmp_path / "g"), options(ubatch=8))
    try:
        assert model.vision is not None
        with pytest.raises(RequestError, match="16 rows"):
            model.vision.prepare(picture())
    finally:
        model.close()


def test_features_of_rows_behind_images(tmp_path: Path) -> None:
    """A head gets those of all rows, whatever pieces they were computed in."""
    model = BACKEND.load(llava(tmp_path / "l"), options(watch=("layer:1",)))
    try:
        assert model.vision is not None
        image = model.vision.prepare(picture())
        tokens, spans = prompt(image)
        model.forward([Rows(1, 0, TEXT, 1), Rows(0, 0, tokens, 1, images=spans)])
        together = model.features().copy()
        assert len(together) == len(TEXT) + len(tokens)
        model.release(0)
        model.forward([Rows(0, 0, tokens[:-4], 0, images=spans)])
        model.forward([Rows(0, len(tokens) - 4, tokens[-4:], 1)])
        assert np.array_equal(model.features(), together[-4:])
        assert np.array_equal(model.features([2]), together[[-2]])
    finally:
        model.close()


# --- memory --------------------------------------------------------------------------------------------


def lines_of(*more: str, warm: int = 736, most: int = 1024 * 1024) -> list[str]:
    return [
        f"load_hparams: image_max_pixels:   {most}\n",
        *more,
        f"get_dummy_batch: warmup with image size = {warm} x {warm}\n",
        "reserve_compute_meta:        CPU compute buffer size =    10.00 MiB\n",
    ]


FLASH = "warmup: flash attention is enabled\n"


@pytest.mark.parametrize(
    ("lines", "times"),
    [
        (lines_of(FLASH), (1024 / 736) ** 2),
        (lines_of(FLASH, "load_hparams: n_wa_pattern: 0\n"), (1024 / 736) ** 2),
        (lines_of("warmup: flash attention is disabled\n"), (1024 / 736) ** 4),
        (lines_of(FLASH, "load_hparams: n_wa_pattern: 8\n"), (1024 / 736) ** 4),
        (lines_of(FLASH, most=300 * 300), 1),
        (lines_of(FLASH)[1:], 1),
    ],
)
def test_the_encoder_needs_memory_for_the_largest_image(lines: list[str], times: float) -> None:
    assert largest_compute_bytes(lines) == pytest.approx(times * (10 << 20), rel=1e-6)
    assert largest_compute_bytes([]) == 0


class Allocated(ctypes.Structure):
    """glibc's `mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "used", "a", "b")
    )


def allocated() -> int:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        pytest.skip("the system does not say what is allocated")
    function.restype = Allocated
    found = function()
    return int(found.mapped + found.used)


def test_what_is_counted_is_what_the_largest_image_takes(tmp_path: Path) -> None:
    model = BACKEND.load(qwen2vl(tmp_path / "m"), options())
    try:
        assert isinstance(model, LlamaCppModel)
        vision = vision_of(model)
        before = allocated()
        for side in (736, 3000):  # that of the warm-up, and one that is made as large as any may be
            vision.prepare(Image(np.zeros((side, side, 3), np.uint8)))
        kept = [_size(image) for image in vision._kept.values()]
        grown = allocated() - before - sum(kept) - max(kept)  # libmtmd has the last one's rows, too
        reserved = vision.compute_bytes * (736 / 1024) ** 2
        assert grown > reserved / 2, "a larger image needs more than the warm-up's"
        assert reserved + grown == pytest.approx(vision.compute_bytes, rel=0.05)
    finally:
        model.close()


# --- the file ------------------------------------------------------------------------------------------


def failure(path: Path, **changes: object) -> ForedraftError:
    with pytest.raises(ForedraftError) as caught:
        BACKEND.load(path, options(**changes)).close()
    return caught.value


def test_files_that_are_no_vision(tmp_path: Path) -> None:
    path = llava(tmp_path / "l")
    mmproj = find_mmproj(path)
    assert mmproj is not None
    assert isinstance(failure(path, mmproj=path), ModelFormatError)
    missing = failure(path, mmproj=tmp_path / "none-here.gguf")
    assert isinstance(missing, ModelNotFoundError)
    assert "models inspect" in str(missing.hint)
    assert isinstance(failure(mmproj), UnsupportedModelError)
    wide = tiny_llama(tmp_path / "wide.gguf", embd=128)
    assert (
        "is no vision for this model: it is 64 wide, the model 128." in failure(wide, mmproj=mmproj).message
    )
    damaged = tmp_path / "mmproj-damaged.gguf"
    damaged.write_bytes(mmproj.read_bytes()[:-5000])
    assert isinstance(failure(path, mmproj=damaged), ModelFormatError)


def test_the_vision_of_another_family_of_the_same_width(tmp_path: Path) -> None:
    qwen, gemma = qwen2vl(tmp_path / "q"), gemma3(tmp_path / "g")
    seen_by = {path: find_mmproj(path) for path in (qwen, gemma)}
    for path, other, words in (
        (qwen, gemma, "it is for gemma3, the model is qwen2vl"),
        (gemma, qwen, "it is for qwen2vl, the model is gemma3"),
    ):
        error = failure(path, mmproj=seen_by[other])
        assert isinstance(error, ModelFormatError)
        assert words in error.message
    assert mmproj_of(qwen, options(mmproj=seen_by[qwen])) == seen_by[qwen]
    folder = tmp_path / "mixed"
    folder.mkdir()
    found = seen_by[gemma]
    assert found is not None
    (folder / "model.gguf").write_bytes(qwen.read_bytes())
    (folder / "mmproj-f16.gguf").write_bytes(found.read_bytes())
    assert mmproj_of(folder / "model.gguf", options()) is None


def test_without_vision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = llava(tmp_path / "l")
    blind = BACKEND.load(path, options(mmproj=Path("none")))
    assert blind.vision is None
    blind.close()
    monkeypatch.setattr(mtmd, "_lacking", lambda _: "mtmd_tokenize")
    mtmd.functions.cache_clear()
    error = failure(path)
    assert isinstance(error, MissingDependencyError)
    assert "libmtmd" in error.message
    mtmd.functions.cache_clear()


def test_a_file_of_another_width_is_not_taken_by_itself(tmp_path: Path) -> None:
    mmproj = find_mmproj(llava(tmp_path / "l"))
    assert mmproj is not None
    folder = tmp_path / "wide"
    folder.mkdir()
    (folder / "mmproj-f16.gguf").write_bytes(mmproj.read_bytes())
    model = BACKEND.load(tiny_llama(folder / "wide.gguf", embd=128), options())
    assert model.vision is None
    model.close()
