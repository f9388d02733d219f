"""`foredraft run --image`: what the model is shown, and what is refused before or after it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image as Pillow

from command_line import Command
from foredraft.cli import paths
from foredraft.library.mmproj import find_mmproj
from gguf_vision import llava
from hub_server import isolated_hub
from seeing_factory import make_seeing_model, picture


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing_model(tmp_path_factory.mktemp("seeing") / "llava", "llava")


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.png", tmp_path / "two.webp"]
    for seed, path in enumerate(paths):
        Pillow.fromarray(picture(seed).pixels).save(path)
    return paths


def test_the_model_is_shown_every_image(foredraft: Command, seeing: Path, pictures: list[Path]) -> None:
    said = {}
    for shown in ([], pictures[:1], pictures[1:], pictures):
        options = [word for path in shown for word in ("--image", path)]
        ran = foredraft(
            "run", "-m", seeing, "-t", 1, "-n", 8, "--temp", 0, "--ctx", 256, "--json", *options, "what?"
        )
        assert ran.code == 0, ran.err
        answer = json.loads(ran.out)
        said[answer["text"]] = answer["usage"]["prompt_tokens"]
    plain, first, second, both = said.values()  # four different texts
    assert first == second == plain + 16
    assert both == plain + 32


def test_what_cannot_be_shown_is_said_before_a_model_is_loaded(
    foredraft: Command, tiny: Path, pictures: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("hello")
    for options, says in (
        (("--image", tmp_path / "none.png"), "none.png cannot be read: No such file"),
        (("--image", tmp_path / "text.png"), "text.png is not a PNG, JPEG, WebP, GIF or BMP picture"),
        (("--image", "https://example.org/cat.png"), "addresses are not fetched"),
        (("--image", pictures[0], "--raw"), "--image needs a chat template"),
        (("--image", pictures[0]), "This model does not see images"),
    ):
        ran = foredraft("run", "-m", tiny, *options, "what?")
        assert ran.code == 2
        assert says in ran.err.replace("\n", " ")


def test_a_gguf_is_pulled_with_its_vision_and_sees(
    foredraft: Command, tmp_path: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llava(tmp_path / "made")
    mmproj = find_mmproj(model)
    assert mmproj is not None
    monkeypatch.setenv(paths.CACHE_VARIABLE, str(tmp_path / "cache"))
    asked = ("run", "-m", "owner/Eyes-GGUF", "-n", 4, "--image", pictures[0], "what?")
    with isolated_hub(monkeypatch, tmp_path) as hub:
        hub.repositories["owner/Eyes-GGUF"] = {
            "Eyes-Q8_0.gguf": model.read_bytes(),
            "mmproj-BF16.gguf": b"another",
            "mmproj-F16.gguf": mmproj.read_bytes(),
        }
        assert foredraft("models", "pull", "owner/Eyes-GGUF", "--no-mmproj").code == 0
        assert "does not see images" in foredraft(*asked).err
        pulled = foredraft("models", "pull", "owner/Eyes-GGUF")
    assert "mmproj-F16.gguf" in pulled.err
    ran = foredraft(*asked)
    assert ran.code == 0, ran.err
    [listed] = [one for one in json.loads(foredraft("models", "list", "--json").out) if one["repository"]]
    assert (
        listed["mmproj"] == json.loads(foredraft("models", "inspect", listed["path"], "--json").out)["mmproj"]
    )
    assert Path(listed["mmproj"]).name == "mmproj-F16.gguf"
    assert "(images)" in foredraft("models", "list").out
    removed = foredraft("models", "rm", "owner/Eyes-GGUF:Q8_0", "--yes")
    assert "with its vision file mmproj-F16.gguf" in removed.err
    assert list((tmp_path / "cache" / "models").iterdir()) == []
