"""Models of transformers that see: they compute what transformers does, with the same bits in any company."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from foredraft.backends.torch.vision import tiles
from foredraft.engine.prompt import encode_prompt
from foredraft.errors import BackendError, RequestError
from foredraft.images import Image, ImageSpan, PreparedImage
from foredraft.protocols import Model
from foredraft.types import Rows
from seeing_factory import MODELS, make_seeing_model, picture
from torch_cases import load

TEXTS = ("see this: ", " and this one, too: ", "what is it? ")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("seeing")

    @cache
    def folder(kind: str) -> Path:
        return make_seeing_model(root / kind, kind)

    return folder


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(folders: Any, kind: str) -> Any:
    loaded = load(folders(kind), sequences=3)
    yield loaded
    loaded.close()


def prompt_of(model: Model, *images: Image) -> tuple[list[int], list[ImageSpan]]:
    """Texts with images between them, as the engine puts them together."""
    vision = model.vision
    assert vision is not None
    tokens: list[int] = []
    spans: list[ImageSpan] = []
    for text, image in zip(TEXTS, images, strict=False):
        tokens += model.tokenizer.encode(text)
        prepared = vision.prepare(image)
        spans += [
            ImageSpan(len(tokens) + first, rows, prepared, run)
            for run, (first, rows) in enumerate(prepared.runs)
        ]
        tokens += prepared.tokens
    return [*tokens, *model.tokenizer.encode(TEXTS[-1])], spans


def rows_of(
    tokens: Sequence[int], spans: Sequence[ImageSpan], start: int, end: int, *, seq: int = 0, logits: int = 0
) -> Rows:
    """A part of a prompt with the parts of images in it."""
    inside = []
    for span in spans:
        first, last = max(start, span.start), min(end, span.end)
        if first < last:
            inside.append(
                ImageSpan(first, last - first, span.image, span.run, span.first + first - span.start)
            )
    return Rows(seq, start, tokens[start:end], logits, images=tuple(inside))


def all_logits(model: Model, tokens: list[int], spans: list[ImageSpan], *, seq: int = 0) -> Any:
    return model.forward([rows_of(tokens, spans, 0, len(tokens), seq=seq, logits=len(tokens))]).copy()


def by_transformers(folder: Path, kind: str, tokens: list[int], images: Sequence[Image], pad: int) -> Any:
    source = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    given = processor(images=[image.pixels for image in images], return_tensors="pt")
    ids = torch.tensor([tokens])
    more = {name: given[name] for name in ("pixel_values", "image_grid_thw") if name in given}
    if kind == "smolvlm":
        more["pixel_attention_mask"] = given["pixel_attention_mask"]
    elif kind != "llava":
        more["token_type_ids" if kind == "gemma3" else "mm_token_type_ids"] = (ids == pad).int()
    with torch.inference_mode():
        return source(input_ids=ids, **more).logits[0].numpy()


def test_logits_are_those_of_transformers(folders: Any, kind: str, model: Model) -> None:
    images = [picture(1), picture(2, 90, 61)]
    tokens, spans = prompt_of(model, *images)
    assert model.vision is not None
    expected = by_transformers(folders(kind), kind, tokens, images, model.vision.placeholder)
    found = all_logits(model, tokens, spans)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    other, other_spans = prompt_of(model, picture(3), picture(2, 90, 61))
    model.release(0)
    assert np.abs(all_logits(model, other, other_spans)[-1] - found[-1]).max() > 0.01  # it looks at them


def test_a_prompt_in_parts_and_in_company_has_the_same_bits(model: Model) -> None:
    tokens, spans = prompt_of(model, picture(1), picture(2, 90, 61))
    whole = all_logits(model, tokens, spans)
    assert model.vision is not None
    inside = [span.start + 2 for span in spans] if model.vision.chunk else [spans[0].end]
    cuts = sorted({0, 3, spans[0].start, *inside, spans[1].start, len(tokens) - 2, len(tokens)})
    other, other_spans = prompt_of(model, picture(5))
    for number, (start, end) in enumerate(pairwise(cuts)):
        part = rows_of(tokens, spans, start, end, seq=2, logits=end - start)
        beside = Rows(1, number, other[number : number + 1], 1)
        if number == 0:
            beside = rows_of(other, other_spans, 0, len(other), seq=1, logits=0)
        found = model.forward([part, beside] if number == 0 else [part])
        assert np.array_equal(found[: end - start], whole[start:end])


def test_rows_behind_an_image_have_the_same_bits_alone_and_together(model: Model) -> None:
    tokens, spans = prompt_of(model, picture(1))
    more = model.tokenizer.encode("it is a slope of")
    all_logits(model, tokens, spans)
    together = model.forward([Rows(0, len(tokens), more, len(more))]).copy()
    model.truncate(0, len(tokens))
    for place, token in enumerate(more):
        alone = model.forward([Rows(0, len(tokens) + place, [token], 1)])
        assert np.array_equal(alone[0], together[place])
    model.truncate(0, len(tokens))
    tree = model.forward([Rows(0, len(tokens), [more[0], 5, more[1]], 3, parents=(-1, 0, 0))])
    assert np.array_equal(tree[[0, 2]], together[:2])


def test_cells_are_copied_cut_and_restored_with_their_images(model: Model) -> None:
    tokens, spans = prompt_of(model, picture(1), picture(2, 90, 61))
    more = model.tokenizer.encode("a slope")
    whole = all_logits(model, tokens, spans)
    expected = model.forward([Rows(0, len(tokens), more, len(more))]).copy()
    saved = model.snapshot(0)
    model.fork(0, 1, len(tokens))
    found = model.forward([Rows(1, len(tokens), more, len(more))])
    assert np.array_equal(found, expected)
    model.restore(2, saved)
    model.truncate(2, spans[0].end + 1)
    rest = rows_of(tokens, spans, spans[0].end + 1, len(tokens), seq=2, logits=1)
    assert np.array_equal(model.forward([rest])[0], whole[-1])
    model.release(2)
    plain = model.tokenizer.encode("no image here")
    before = model.forward([Rows(2, 0, plain, 1)]).copy()
    model.release(1)
    assert np.array_equal(model.forward([Rows(1, 0, plain, 1)]), before)  # nothing is left of the images
    with pytest.raises(BackendError):
        model.restore(2, bytearray(b"x" * 30))


def test_an_image_is_prepared_once_and_known_by_its_pixels(model: Model) -> None:
    assert model.vision is not None
    first = model.vision.prepare(picture(1))
    assert model.vision.prepare(picture(1)) is first
    assert model.vision.prepare(picture(2)).key != first.key
    sideways = Image(picture(1).pixels.transpose(1, 0, 2).copy())
    assert model.vision.prepare(sideways).key != first.key
    shown = [at for at, token in enumerate(first.tokens) if token == model.vision.placeholder]
    assert shown == [at for start, count in first.runs for at in range(start, start + count)]
    assert len(first.data.vectors) == first.rows  # type: ignore[attr-defined]


@pytest.mark.parametrize(("high", "wide"), [(0, 0), (1, 2), (2, 1), (3, 3)])
def test_tiles_are_laid_out_as_by_transformers(high: int, wide: int) -> None:
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    edge, whole = "<fake_token_around_image>", "<global-img>"
    expected = get_image_prompt_string(high, wide, 4, edge, "<image>", whole)
    pieces = tiles(high, wide, 4)
    assert "".join(piece if isinstance(piece, str) else "<image>" * piece for piece in pieces) == expected


def test_the_same_rows_are_computed_again_after_they_were_forgotten(folders: Any, kind: str) -> None:
    bits = []
    for _ in range(2):
        model = load(folders(kind))
        assert model.vision is not None
        prepared: PreparedImage = model.vision.prepare(picture(4))
        bits.append(prepared.data.vectors.numpy().tobytes())  # type: ignore[attr-defined]
        model.close()
    assert bits[0] == bits[1]


def test_an_image_of_an_impossible_shape_is_refused(folders: Any) -> None:
    model = load(folders("qwen2_vl"))
    assert model.vision is not None
    with pytest.raises(RequestError, match="cannot see an image of 900 × 3 pixels"):
        model.vision.prepare(picture(1, 3, 900))
    model.close()


@pytest.mark.parametrize("kind", ["llava", "gemma3"])
def test_the_smallest_images_are_seen_as_they_are(folders: Any, kind: str) -> None:
    source = transformers.AutoModelForImageTextToText.from_pretrained(folders(kind), dtype=torch.float32)
    processor = transformers.AutoImageProcessor.from_pretrained(folders(kind), backend="pil")
    model = load(folders(kind))
    assert model.vision is not None
    for high, wide in [*product((1, 2, 3, 4), repeat=2), *product((1, 3), (30,)), *product((30,), (1, 3))]:
        image = picture(1, high, wide)
        found = model.vision.prepare(image).data.vectors  # type: ignore[attr-defined]
        given = processor(images=[image.pixels], input_data_format="channels_last", return_tensors="pt")
        with torch.inference_mode():
            expected = source.model.get_image_features(given["pixel_values"], return_dict=True).pooler_output
        expected = torch.cat(list(expected)).reshape(found.shape)
        assert torch.allclose(found.float(), expected, rtol=1e-4, atol=1e-4), (high, wide)
    model.close()


def test_without_an_image_processor_it_reads_text_and_says_why(folders: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("llava"), tmp_path / "blind")
    (folder / "preprocessor_config.json").unlink()
    model = load(folder)
    assert model.vision is None
    assert "no image processor" in model.info.settings["vision"]
    model.close()


def test_a_text_that_spells_the_marker_stays_text(model: Model) -> None:
    """Only the template's marker is a place for an image, whatever messages spell, whole or in parts."""
    vision = model.vision
    assert vision is not None
    marker = vision.marker
    image = {"type": "image", "image": picture(1)}
    for text in (marker, f"a {marker}{marker} b", marker[1:-1], marker[:-1]):
        spelled = [{"role": "user", "content": [{"type": "text", "text": text}, image]}]
        plain = [{"role": "user", "content": [{"type": "text", "text": "x"}, image]}]
        for messages in (
            spelled,
            [*plain, {"role": "assistant", "content": text}, {"role": "user", "content": text}],
        ):
            encoded = encode_prompt(model.tokenizer, messages, vision)
            shown = [at for at, token in enumerate(encoded.tokens) if token == vision.placeholder]
            assert shown == [at for span in encoded.images for at in range(span.start, span.end)]
            assert len({span.image.key for span in encoded.images}) == 1
        with_text = encode_prompt(model.tokenizer, [{"role": "user", "content": text}], vision)
        assert not with_text.images
        assert vision.placeholder not in with_text.tokens
        said = b"".join(map(model.tokenizer.token_bytes, with_text.tokens))
        assert text.encode() in said


PLAIN = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}{{ message.content }}<|im_end|>{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant{%- endif %}"
)


def test_a_template_that_knows_no_images_has_them_in_the_text(
    folders: Any, kind: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders(kind), tmp_path / "plain")
    (folder / "chat_template.jinja").write_text(PLAIN)
    knows, plain = load(folders(kind)), load(folder)
    parts = [{"type": "text", "text": "see "}, {"type": "image", "image": picture(1)}]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "this"}]}]
    expected = encode_prompt(knows.tokenizer, messages, knows.vision)
    found = encode_prompt(plain.tokenizer, messages, plain.vision)
    assert plain.vision is not None
    assert plain.vision.marker == ""
    assert found.tokens == expected.tokens
    assert [(span.start, span.rows) for span in found.images] == [
        (span.start, span.rows) for span in expected.images
    ]
    for model in (knows, plain):
        model.close()
