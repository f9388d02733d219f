"""Images in prompts: their places, what the prefix cache knows them by, and forwards that do not cut them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from foredraft.engine.engine import Engine
from foredraft.engine.images import fitting, least
from foredraft.engine.prefix.disk import open_disk
from foredraft.engine.prompt import encode_prompt
from foredraft.engine.scoring import with_scores
from foredraft.errors import RequestError
from foredraft.images import (
    EncodedPrompt,
    Image,
    ImageSpan,
    PreparedImage,
    before_run,
    keyed,
    row_keys,
    spans_within,
)
from foredraft.testing import FakeModel, FakeTokenizer, FakeVision, ScriptedDrafter
from foredraft.types import Message, SamplingOptions, SamplingParams

SEEN: SamplingOptions = {"max_tokens": 12}


def picture(seed: int = 0, height: int = 24, width: int = 40) -> Image:
    return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def about(*images: Image, text: str = "What is it?") -> list[Message]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def prepared(rows: int, key: str = "k") -> PreparedImage:
    return PreparedImage(key, (7,) * rows, ((0, rows),))


# --- encoding ------------------------------------------------------------------------------------------


def test_an_image_stands_where_it_was_in_the_message() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "image", "image": picture()},
        {"type": "text", "text": "two"},
        {"type": "text", "text": "three"},
    ]
    tokens, [span] = encode_prompt(FakeTokenizer(), [{"role": "user", "content": parts}], FakeVision(chunk=4))
    written = [token for token in tokens if token != 257]
    assert bytes(written).decode() == "user: one[]two\nthree\nassistant: "
    assert (span.start, span.rows) == (10, 15)
    assert tokens[span.start : span.end] == [257] * 15


def test_several_images_keep_their_order() -> None:
    first, second = picture(1), picture(2, 8, 8)
    tokens, spans = encode_prompt(FakeTokenizer(), about(first, second, first), FakeVision())
    assert [span.rows for span in spans] == [15, 1, 15]
    assert spans[0].image.key == spans[2].image.key != spans[1].image.key
    assert all(tokens[span.start - 1] == ord("[") and tokens[span.end] == ord("]") for span in spans)


class _Marking(FakeTokenizer):
    """Its template writes a marker for images, as those of transformers' models do."""

    def apply_chat_template(self, messages: Sequence[Message], **variables: object) -> str:
        given = []
        for message in messages:
            content = message["content"]
            if not isinstance(content, str):
                content = "".join("<image>" if part["type"] == "image" else part["text"] for part in content)
            given.append({**message, "content": content})
        return super().apply_chat_template(given)


def test_a_template_may_write_the_marker() -> None:
    vision = FakeVision(marker="<image>")
    tokens, [span] = encode_prompt(_Marking(), about(picture()), vision)
    assert bytes(token for token in tokens if token != 257).decode() == "user: []What is it?\nassistant: "
    assert span.start == 7
    with pytest.raises(RequestError, match="has 2 places for 1 images"):
        encode_prompt(_Marking(), about(picture(), text="An <image>?"), vision)


def test_what_cannot_be_seen_is_refused() -> None:
    with pytest.raises(RequestError, match="does not see images") as caught:
        encode_prompt(FakeTokenizer(), about(picture()))
    assert "mmproj" in str(caught.value.hint)
    for pixels in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(RequestError, match="An image has"):
            encode_prompt(FakeTokenizer(), about(Image(pixels)), FakeVision())  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="An image has"):
        encode_prompt(FakeTokenizer(), [{"role": "user", "content": [{"type": "image"}]}], FakeVision())
    with Engine(FakeModel(vision=FakeVision(chunk=0), max_batch=32)) as engine:
        with pytest.raises(RequestError, match="computes an image in one forward"):
            engine.add(about(picture(height=64, width=64)))
        params = with_scores(SamplingParams(), score_prompt=True, answers=False)
        with pytest.raises(RequestError, match="cannot be scored"):
            engine.add(about(picture()), params)


# --- keys and chunks -----------------------------------------------------------------------------------


def test_a_text_without_its_part_is_refused() -> None:
    messages = [{"role": "user", "content": ["foo", {"type": "image", "image": picture()}]}]
    with (
        Engine(FakeModel(vision=FakeVision())) as engine,
        pytest.raises(RequestError, match="without a type"),
    ):
        engine.generate(messages)


def test_keys_are_negative_and_tell_images_and_rows_apart() -> None:
    one, other = row_keys(prepared(500), 0), row_keys(prepared(500, "other"), 0)
    assert all(-(2**31) <= key < 0 for key in [*one, *other])
    assert len({*one, *other}) == 1000
    assert [key % 2 for key in one] == [1] + [0] * 499
    assert row_keys(prepared(500), 0) == one


def test_a_text_with_images_is_known_by_keys() -> None:
    image = prepared(4)
    span = ImageSpan(2, 4, image)
    keys = keyed([1, 2, 7, 7, 7, 7, 3], [span])
    assert keys == [1, 2, *row_keys(image, 0), 3]
    assert [before_run(keys, length) for length in range(8)] == [0, 1, 2, 2, 2, 2, 6, 7]
    [cut] = spans_within([span], 4, 9)
    assert (cut.start, cut.rows, cut.first) == (4, 2, 2)
    both = [1, *row_keys(image, 0), *row_keys(prepared(2), 0)]
    assert [before_run(both, length) for length in range(8)] == [0, 1, 1, 1, 1, 5, 5, 7]
    assert keyed([7, 7], [ImageSpan(0, 2, image, 0, 2)]) == row_keys(image, 0)[2:]


@pytest.mark.parametrize(
    ("chunk", "start", "count", "room", "expected"),
    [
        (0, 0, 30, 64, 10),  # it stops before the image
        (0, 10, 30, 64, 40),  # or takes all of it
        (0, 10, 30, 39, 0),  # where there is room for it
        (0, 10, 45, 64, 45),
        (16, 0, 30, 64, 26),
        (16, 10, 8, 64, 16),
        (16, 26, 20, 64, 16),
        (16, 42, 3, 64, 8),  # its last chunk
        (16, 42, 3, 7, 0),
        (16, 50, 3, 64, 3),
    ],
)
def test_forwards_end_where_an_image_may_be_cut(
    chunk: int, start: int, count: int, room: int, expected: int
) -> None:
    span = ImageSpan(10, 40, prepared(40))
    assert fitting([span], chunk, start, count, room) == expected


def test_rows_that_must_have_room() -> None:
    span = ImageSpan(10, 40, prepared(40))
    assert [least([span], 16, start) for start in (0, 10, 26, 42, 50)] == [1, 16, 16, 8, 1]
    assert least([span], 0, 10) == 40


# --- the engine ----------------------------------------------------------------------------------------


def answers(make: Callable[[], FakeModel], *prompts: list[Message], draft: bool = False) -> list[list[int]]:
    """Of each prompt, all at once."""
    drafter = ScriptedDrafter(lambda tokens: tokens[-9:-5])
    with Engine(make(), drafters=[drafter] if draft else []) as engine:
        requests = [engine.add(prompt, SamplingParams(**SEEN)) for prompt in prompts]
        return [list(result.tokens) for result in engine.run(requests)]


@pytest.mark.parametrize("chunk", [0, 4, 16])
def test_answers_depend_on_the_image_alone(chunk: int) -> None:
    """Alone and in company, with drafts and without, however the prompt is cut into forwards."""

    def make(max_batch: int = 512) -> FakeModel:
        return FakeModel(vision=FakeVision(chunk=chunk), max_batch=max_batch)

    one, two = about(picture(1)), about(picture(2), picture(1))
    [first], [second] = answers(make, one), answers(make, two)
    assert first != second
    assert answers(make, about(picture(3))) != [first]
    assert answers(make, one, two, one, two) == [first, second, first, second]
    assert answers(make, one, two, one, two, draft=True) == [first, second, first, second]
    assert answers(lambda: make(24), one, two, one) == [first, second, first]


def test_an_image_does_not_starve_beside_running_requests() -> None:
    """With rounds that draft as much as there is room for."""
    model = FakeModel(vision=FakeVision(chunk=0), max_batch=32, sequences=2)
    with Engine(model, drafters=[ScriptedDrafter(lambda tokens: tokens[-40:])]) as engine:
        running = engine.add(list(range(40)), SamplingParams(max_tokens=200))
        engine.step()
        seeing = engine.add(about(picture(height=32, width=56)), SamplingParams(max_tokens=1))
        rounds = 0
        while not any(event.request == seeing for event in engine.step()):
            rounds += 1
            assert rounds < 20
        engine.abort(running)


def test_equal_images_share_a_prefix_and_others_do_not() -> None:
    vision = FakeVision()
    with Engine(FakeModel(vision=vision)) as engine:
        first = engine.generate(about(picture(1)), **SEEN)
        again = engine.generate(about(picture(1)), **SEEN)
        assert again.tokens == first.tokens
        assert again.usage.cached_tokens == first.usage.prompt_tokens - 1
        other = engine.generate(about(picture(2)), **SEEN)
        assert other.usage.cached_tokens == len("user: [")
        assert other.tokens != first.tokens
        text = engine.encode(about(picture(2)))
        assert engine.generate(text, **SEEN).usage.cached_tokens == len("user: [")


def test_a_prompt_that_ends_with_an_image_is_computed_from_its_first_row() -> None:
    """Its last row is computed whenever it is asked again, and no forward may begin inside."""
    model = FakeModel(vision=FakeVision(chunk=0))
    with Engine(model) as engine:
        image = FakeVision().prepare(picture())
        prompt = EncodedPrompt([1, 2, 3, 4, 5, *[257] * 15], (ImageSpan(5, 15, image),))
        first = engine.generate(prompt, **SEEN)
        again = engine.generate(prompt, **SEEN)
        assert again.tokens == first.tokens
        assert again.usage.cached_tokens == 5


def test_an_image_that_was_half_read_is_cut_off() -> None:
    """What an aborted request leaves ends where the next forward may begin."""
    model = FakeModel(vision=FakeVision(chunk=4), max_batch=8, sequences=1)
    with Engine(model) as engine:
        request = engine.add(about(picture()), SamplingParams(max_tokens=2))
        engine.step()
        engine.step()
        assert 7 < model.length(0) < 22
        engine.abort(request)
        assert engine.kept_tokens == model.length(0) == len("user: [")


def test_the_disk_knows_images_by_their_keys(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[int, list[int]]:
        model = FakeModel(vision=FakeVision())
        with Engine(model) as engine:
            engine._scheduler.cache.disk = open_disk(model, tmp_path, 1 << 30)
            result = engine.generate(about(picture(seed, 80, 128), text="Describe it. " * 4), **SEEN)
            return result.usage.cached_tokens, list(result.tokens)

    first, again, other = made(1), made(1), made(2)
    assert first[0] == 0 < 160 < again[0]
    assert first[1] == again[1]
    assert other[0] == 0
    assert other[1] != first[1]


def test_placeholders_are_never_drafted() -> None:
    drafter = ScriptedDrafter(lambda tokens: [*tokens[-2:], 257, 1])
    model = FakeModel(vision=FakeVision())
    with Engine(model, drafters=[drafter]) as engine:
        engine.generate(about(picture()), max_tokens=12, ignore_eos=True)
    drafted = [rows.tokens for batch in model.forwards for rows in batch if not rows.images]
    assert any(len(tokens) == 3 for tokens in drafted)
    assert all(257 not in tokens for tokens in drafted)
