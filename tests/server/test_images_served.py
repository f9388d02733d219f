"""Images in requests of all three APIs: where they may come from, what is refused, and that they are seen."""

from __future__ import annotations

import base64
import io
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from PIL import Image as Pillow

from foredraft.errors import RequestError
from foredraft.images import Image, ImageSpan, PreparedImage
from foredraft.pictures import decode_picture
from foredraft.server.image_settings import ImageSettings
from foredraft.server.settings import ServerSettings
from foredraft.server.transcript import MOST_TEXT, beginning
from foredraft.testing import FakeTokenizer, FakeVision
from http_server import Running, client_of, serving


def png(seed: int, width: int = 16, height: int = 16) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(noise).save(out, "PNG")
    return out.getvalue()


def data_url(seed: int, width: int = 16, height: int = 16) -> str:
    return "data:image/png;base64," + base64.b64encode(png(seed, width, height)).decode()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    pictures = tmp_path_factory.mktemp("pictures")
    (pictures / "inside").mkdir()
    (pictures / "inside" / "cat one.png").write_bytes(png(1))
    (pictures / "secret.png").write_bytes(png(2))
    (pictures / "inside" / "out.png").symlink_to(pictures / "secret.png")
    images = ImageSettings(
        folders=(pictures / "inside",), max_images=3, max_pixels=10_000, max_request_pixels=20_000
    )
    with serving(settings=ServerSettings(images=images), sees=True) as running:
        yield running


@pytest.fixture(scope="module")
def pictures(seeing: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(path for path in tmp_path_factory.getbasetemp().glob("pictures*") if path.is_dir())


@pytest.fixture
def client(seeing: Running) -> Iterator[openai.OpenAI]:
    with client_of(seeing) as made:
        yield made


@pytest.fixture
def claude(seeing: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=seeing.url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


def shown(*urls: str, text: str = "what is it?") -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


def chat(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(
        model="fake", messages=messages, max_tokens=12, temperature=0, seed=1, **options
    )


def tokens(answer: Any) -> list[list[int]]:
    """The bytes of an answer's tokens: behind an image the model writes any, and few of them are text."""
    return [token.bytes for token in answer.choices[0].logprobs.content]


def readable(client: openai.OpenAI) -> int:
    """An image about which the model writes nothing but text."""
    answers = ((seed, chat(client, shown(data_url(seed)))) for seed in range(10, 200))
    return next(seed for seed, answer in answers if (answer.choices[0].message.content or "\ufffd").isascii())


def test_the_answer_depends_on_the_image(client: openai.OpenAI) -> None:
    first = chat(client, shown(data_url(1)), logprobs=True)
    other = chat(client, shown(data_url(2)), logprobs=True)
    assert tokens(chat(client, shown(data_url(1)), logprobs=True)) == tokens(first)
    assert tokens(other) != tokens(first)
    assert first.usage.prompt_tokens == other.usage.prompt_tokens
    assert first.usage.prompt_tokens == chat(client, shown()).usage.prompt_tokens + 4 + 2  # rows and brackets
    larger = chat(client, shown(data_url(1, 32, 16)))
    assert larger.usage.prompt_tokens == first.usage.prompt_tokens + 4
    assert chat(client, shown(data_url(1))).usage.prompt_tokens_details.cached_tokens > 6


def test_streamed_and_whole_answers_are_the_same(client: openai.OpenAI) -> None:
    whole = chat(client, shown(data_url(3)))
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in chat(client, shown(data_url(3)), stream=True)
        if chunk.choices
    ]
    assert "".join(pieces) == whole.choices[0].message.content


def test_the_three_apis_show_the_same_image(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    seed = readable(client)
    text = chat(client, shown(data_url(seed))).choices[0].message.content
    source: Any = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(seed)).decode()}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
    turn: Any = {"role": "user", "content": content}
    message = claude.messages.create(
        model="fake", messages=[turn], max_tokens=12, extra_body={"temperature": 0}
    )
    assert message.content[0].text == text  # type: ignore[union-attr]
    counted = claude.messages.count_tokens(model="fake", messages=[turn])
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    parts: Any = [
        {"type": "input_image", "image_url": data_url(seed), "detail": "auto"},
        {"type": "input_text", "text": "what is it?"},
    ]
    response = client.responses.create(
        model="fake", input=[{"role": "user", "content": parts}], max_output_tokens=16, temperature=0
    )
    assert response.output_text.startswith(str(text))


def test_a_file_in_an_allowed_folder(client: openai.OpenAI, pictures: Path) -> None:
    by_file = chat(client, shown((pictures / "inside" / "cat one.png").as_uri()), logprobs=True)
    assert tokens(by_file) == tokens(chat(client, shown(data_url(1)), logprobs=True))


@pytest.mark.parametrize(
    "name",
    ["secret.png", "inside/../secret.png", "inside/out.png", "inside", "inside/missing.png", "inside/%00"],
)
def test_files_elsewhere_are_not_read(client: openai.OpenAI, pictures: Path, name: str) -> None:
    says = r"messages\.0\.content\.0: the image names a file"
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        chat(client, shown(f"file://{pictures}/{name}"))
    assert refused.value.param == "messages.0.content.0.image_url"


def test_a_file_of_another_host_is_not_read(client: openai.OpenAI, pictures: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="names a file that this server does not read"):
        chat(client, shown(f"file://host{pictures}/inside/cat%20one.png"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://example.org/cat.png", r"does not fetch(.|\n)*remote = true"),
        ("ftp://example.org/cat.png", "no address of an image"),
        ("cat.png", "no address of an image"),
        ("data:image/png;base64,AAAA", "not a PNG, JPEG"),
        ("data:image/png;base64,%%", "not base64"),
        ("data:text/plain,hello", "not a data URL in base64"),
        ("", "has no url"),
        (data_url(1, 101, 100), "101 × 100 pixels; at most 10000"),
        ("data:image/png;base64," + base64.b64encode(png(1)[:200]).decode(), "broken or cut off"),
    ],
)
def test_what_is_no_image_is_refused_with_its_place(client: openai.OpenAI, url: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        chat(client, shown(data_url(1), url))
    assert "messages.0.content.1: the image" in str(refused.value)
    assert refused.value.param == "messages.0.content.1.image_url"
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": url}]
    asked: Any = [{"role": "user", "content": parts}]
    with pytest.raises(openai.BadRequestError, match=says if url else "at least 1 character") as refused:
        client.responses.create(model="fake", input=asked)
    assert refused.value.param == "input.0.content.1.image_url"


def test_too_many_images_are_refused(client: openai.OpenAI) -> None:
    chat(client, shown(*[data_url(1)] * 3))
    with pytest.raises(openai.BadRequestError, match="4 images are too many; at most 3") as refused:
        chat(client, shown(*[data_url(1)] * 4))
    assert refused.value.param == "messages.0.content.3.image_url"


def test_images_that_are_too_large_together_are_refused(client: openai.OpenAI) -> None:
    large = [data_url(seed, 100, 90) for seed in range(3)]
    chat(client, shown(*large[:2]))
    with pytest.raises(openai.BadRequestError, match="together they may have 20000 pixels") as refused:
        chat(client, shown(*large))
    assert refused.value.param in {f"messages.0.content.{place}.image_url" for place in range(3)}


def test_tools_may_spell_private_use_characters(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "t", "description": "icon \ue000"}}
    assert chat(client, shown(data_url(1), data_url(2)), tools=[tool]).usage.prompt_tokens > 6


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_are_the_users(client: openai.OpenAI, role: str) -> None:
    messages = [{**shown(data_url(1))[0], "role": role}, {"role": "user", "content": "hi"}]
    with pytest.raises(openai.BadRequestError, match=f"messages.0: .*{role}") as refused:
        chat(client, messages)
    assert refused.value.param == "messages.0.content.0.image_url"


def test_other_forms_of_the_same_are_taken(client: openai.OpenAI) -> None:
    bare = [{"role": "user", "content": [{"type": "image_url", "image_url": data_url(1)}]}]
    assert chat(client, bare).usage.prompt_tokens > 6


def test_an_image_that_a_tool_returned_is_shown_after_its_result(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(5)).decode()}
    result: Any = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": "done"}, {"type": "image", "source": source}],
    }
    turns: Any = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [result, {"type": "text", "text": "what is it?"}]},
    ]
    tools: Any = [{"name": "f", "input_schema": {"type": "object"}}]
    counted = claude.messages.count_tokens(model="fake", messages=turns, tools=tools).input_tokens
    del result["content"][1]
    assert counted == claude.messages.count_tokens(model="fake", messages=turns, tools=tools).input_tokens + 6
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": data_url(5)}],
    }
    given: Any = [{"role": "user", "content": "look"}, call, output]
    assert client.responses.create(model="fake", input=given, max_output_tokens=16).usage is not None
    output["output"] = [{"type": "input_image", "image_url": "data:,x"}]
    with pytest.raises(openai.BadRequestError, match=r"input\.2\.output\.0: the image"):
        client.responses.create(model="fake", input=given, max_output_tokens=16)


@pytest.mark.parametrize("method", ["lay_out", "prepare"])
def test_what_the_model_cannot_see_is_named_as_what_cannot_be_read(
    method: str, seeing: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors after an image was decoded: that of the second of three is the model's."""
    usual = getattr(FakeVision, method)

    def narrow(vision: FakeVision, image: Image) -> Any:
        if image.pixels.shape[0] == 24:
            raise RequestError("An image of 24 rows is too narrow.")
        return usual(vision, image)

    monkeypatch.setattr(FakeVision, method, narrow)
    urls = [data_url(31), data_url(32, 16, 24), data_url(33)]
    client = client_of(seeing)
    with pytest.raises(openai.BadRequestError, match="too narrow") as refused:
        chat(client, shown(*urls))
    assert refused.value.param == "messages.0.content.1.image_url"
    parts: Any = [{"type": "input_image", "image_url": url} for url in urls]
    with pytest.raises(openai.BadRequestError, match="too narrow") as refused:
        client.responses.create(
            model="fake", input=[{"role": "user", "content": parts}], max_output_tokens=16
        )
    assert refused.value.param == "input.0.content.1.image_url"


def test_an_image_that_no_forward_holds_is_named(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(vision: FakeVision, image: Image) -> PreparedImage:
        many = 600 if image.pixels.shape[0] == 24 else 4
        return PreparedImage(f"{many}", (vision.placeholder,) * many, ((0, many),), image=image)

    chat(client_of(seeing), [{"role": "user", "content": "hello"}])  # it is loaded
    monkeypatch.setattr(FakeVision, "lay_out", whole)
    for engine in seeing.engines.values():
        monkeypatch.setattr(engine.model.vision, "chunk", 0)
    with pytest.raises(openai.BadRequestError, match="600 rows") as refused:
        chat(client_of(seeing), shown(data_url(31), data_url(32, 16, 24)))
    assert refused.value.param == "messages.0.content.1.image_url"


def test_images_that_a_template_has_no_place_for_are_named(
    seeing: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(*_: object, **__: object) -> str:
        return "assistant: "

    monkeypatch.setattr(FakeTokenizer, "apply_chat_template", forgetful)
    with pytest.raises(openai.BadRequestError, match="0 places for 1 image") as refused:
        chat(client_of(seeing), shown(data_url(31)))
    assert refused.value.param == "messages.0.content.0.image_url"


def test_a_model_that_does_not_see_says_so_and_what_to_do() -> None:
    with serving() as blind:
        body = {"model": "fake", "messages": shown("https://example.org/never-fetched.png")}
        reply = httpx.post(f"{blind.url}/v1/chat/completions", json=body, timeout=30)
        assert reply.status_code == 400
        assert "messages.0.content.0: the image: this model does not see images" in reply.text
        assert "mmproj" in reply.json()["error"]["message"]
        assert reply.json()["error"]["param"] == "messages.0.content.0.image_url"
        entry = httpx.get(f"{blind.url}/v1/models/fake", timeout=30).json()
        assert entry["architecture"]["input_modalities"] == ["text"]
        assert "multimodal" not in entry["capabilities"]


def test_models_that_see_are_listed_as_such(seeing: Running, client: openai.OpenAI) -> None:
    chat(client, shown(data_url(1)))
    entry = httpx.get(f"{seeing.url}/v1/models", timeout=30).json()["data"][0]
    assert entry["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    assert "multimodal" in entry["capabilities"]


def test_no_image_is_in_the_log_or_in_errors(client: openai.OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    url = data_url(9)
    with caplog.at_level(logging.DEBUG):
        chat(client, shown(url))
        with pytest.raises(openai.BadRequestError) as refused:
            chat(client, shown(url.replace("base64,", "base64,%%")))
    assert url[40:80] not in caplog.text + str(refused.value)


def test_a_recorded_prompt_has_the_number_of_an_image_s_rows() -> None:
    vision = FakeVision()
    prepared = vision.prepare(decode_picture(png(1)))
    tokens = [*b"see ", *prepared.tokens, *b" now"]
    span = ImageSpan(5, prepared.rows, prepared)
    assert beginning(FakeTokenizer(), tokens, [span]) == "see [[image: 4 rows]] now"
    assert beginning(FakeTokenizer(), [97] * 30_000) == "a" * MOST_TEXT


def test_speculation_does_not_change_answers_about_images(client: openai.OpenAI) -> None:
    for seed in (1, 2):
        asked = shown(data_url(seed), text="again and again and again")
        drafted = chat(client, asked, logprobs=True)
        plain = chat(client, asked, logprobs=True, extra_body={"speculate": "off"})
        assert tokens(drafted) == tokens(plain)


class Site(BaseHTTPRequestHandler):
    """A site with one picture."""

    def do_GET(self) -> None:
        body = png(1)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


def test_addresses_are_fetched_where_that_is_switched_on() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{site.server_address[1]}/cat.png"
        for private in (True, False):
            images = ImageSettings(remote=True, remote_private=private)
            with (
                serving(settings=ServerSettings(images=images), sees=True) as running,
                client_of(running) as made,
            ):
                if private:
                    fetched = chat(made, shown(url), logprobs=True)
                    assert tokens(fetched) == tokens(chat(made, shown(data_url(1)), logprobs=True))
                else:
                    with pytest.raises(
                        openai.BadRequestError, match=r"the image: 127\.0\.0\.1 is at a private"
                    ):
                        chat(made, shown(url))
        site.shutdown()


class Slow(Site):
    """A site that answers when it may."""

    asked = threading.Event()
    may = threading.Event()

    def do_GET(self) -> None:
        Slow.asked.set()
        Slow.may.wait(30)
        Site.do_GET(self)


def test_a_slow_address_takes_no_room_from_others() -> None:
    images = ImageSettings(remote=True, remote_private=True, max_total_pixels=256, remote_timeout_s=60)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Slow) as site,
        serving(settings=ServerSettings(images=images), sees=True) as running,
        client_of(running) as made,
        ThreadPoolExecutor(1) as other,
    ):
        threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{site.server_address[1]}/cat.png"
        try:
            slow = other.submit(chat, made.with_options(timeout=60), shown(url), logprobs=True)
            assert Slow.asked.wait(10)
            own = chat(made, shown(data_url(1)), logprobs=True)  # as large as all together may be
            assert not slow.done()
        finally:
            Slow.may.set()
        assert tokens(slow.result(30)) == tokens(own)
        site.shutdown()
