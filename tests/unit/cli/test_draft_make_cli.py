"""`foredraft draft make`, `list` and `remove`: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import pytest

import gguf_factory
import gguf_heads
from command_line import Command, Ran
from foredraft.backends.llamacpp import BACKEND
from foredraft.cli import draft_make, paths
from foredraft.draft.make import job
from foredraft.draft.make.judge import Judgement
from foredraft.draft.make.sizes import Sizes
from foredraft.draft.make.write import HeadFacts, write_gguf
from foredraft.draft.result import Result
from foredraft.errors import ConfigError
from foredraft.library import heads as library_heads
from foredraft.library.catalogue import heads_dir
from foredraft.library.fingerprint import fingerprint_of
from foredraft.library.heads import head_of, resolve_head

pytestmark = pytest.mark.usefixtures("quick_trial")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("models") / "six.gguf", layers=6)


@pytest.fixture(autouse=True)
def _no_packaged_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_heads, "PACKAGED", tmp_path / "none")


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Few prompts, whose short answers are enough."""
    monkeypatch.setattr(job, "ANSWER_TOKENS", 48)
    monkeypatch.setattr(job, "LEAST_ROWS", 100)
    monkeypatch.setattr(job, "ANSWERING", 100.0)
    monkeypatch.setattr(job, "SLOW_ANSWERING", 100.0)
    monkeypatch.setattr(job, "READING", 100.0)
    rows = [{"id": n, "category": "words", "turns": [f"Say {n} words."]} for n in range(40)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def made(command: Command, model: Path, prompts: Path, *arguments: object) -> Ran:
    fixed = ("--no-own", "--minutes", 0.02, "-t", 1, "--ctx", 256)
    return command("draft", "make", model, "--prompts", prompts, *fixed, *arguments)


def test_a_head_is_made_and_installed(foredraft: Command, model: Path, prompts: Path, tmp_path: Path) -> None:
    ran = made(foredraft, model, prompts, "--install", "--safetensors", tmp_path / "head")
    assert ran.code == 0, ran.err
    assert "training: 100%" in ran.err
    assert "at depth 1, 2, 3" in ran.out
    assert "places in answers that it has not seen" in ran.out
    assert "Judged at " in ran.out
    installed = head_of(model, paths.models_dir(), BACKEND.weights_hash)
    assert installed is not None
    assert f"Installed: {installed}" in ran.out
    assert (tmp_path / "head" / "model.safetensors").exists()
    work = paths.making_dir() / fingerprint_of(model)[:16]
    assert not (work / "rows").exists()
    assert (work / "answers.jsonl").exists()
    listed = foredraft("draft", "list", "--json")
    [head] = json.loads(listed.out)
    assert head["target"] == "Tiny Llama"
    assert len(head["acceptance"]) == 3
    assert foredraft("draft", "remove", head["name"], "--yes").code == 0
    assert head_of(model, paths.models_dir(), BACKEND.weights_hash) is None


def test_a_head_that_does_not_pay_is_not_installed(
    foredraft: Command, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of no training: it says why, and where the head lies."""
    monkeypatch.setattr("foredraft.draft.make.judge.LEAST_PLACES", 1)
    monkeypatch.setattr(Result, "uses", False)
    ran = made(foredraft, model, prompts)
    assert ran.code == 0, ran.err
    assert "Not installed" in ran.out
    assert not heads_dir(paths.models_dir()).exists()
    place = Path(ran.out.split("it lies in ")[1].split(".gguf")[0] + ".gguf")
    assert place.exists()


@pytest.mark.parametrize("enough", [True, False])
def test_a_head_that_pays_is_installed_if_that_is_known_of_enough_places(
    foredraft: Command, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, enough: bool
) -> None:
    monkeypatch.setattr("foredraft.draft.make.judge.LEAST_PLACES", 1 if enough else 10_000)
    monkeypatch.setattr(Result, "uses", True)
    ran = made(foredraft, model, prompts)
    assert ran.code == 0, ran.err
    assert heads_dir(paths.models_dir()).exists() == enough
    found = re.search(r"Judged at ([\d,]+) places in (\d+ answers?) that were kept for this", ran.out)
    assert found is not None, ran.out
    assert int(found[1].replace(",", "")) > 0
    assert ("too few to install a head by, 10000 are the least" in ran.out) != enough


def test_json_names_the_file_and_its_figures(
    foredraft: Command, model: Path, prompts: Path, tmp_path: Path
) -> None:
    ran = made(foredraft, model, prompts, "-o", tmp_path / "head.gguf", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["file"] == str(tmp_path / "head.gguf")
    assert found["installed"] is False
    assert found["bytes"] == (tmp_path / "head.gguf").stat().st_size
    assert len(found["acceptance"]) == 3
    assert found["score"]["format"] == "foredraft-draft-score"
    assert found["places"] > 0
    assert found["judged_places"] > 0


def test_the_better_of_two_heads_stays(
    foredraft: Command, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared on the same answers; the head that is there already is not compared with itself."""
    monkeypatch.setattr(Judgement, "installs", True)
    first = made(foredraft, model, prompts)
    assert first.code == 0, first.err
    head = head_of(model, paths.models_dir(), BACKEND.weights_hash)
    assert head is not None
    before = head.read_bytes()
    again = made(foredraft, model, prompts)
    assert "used now" not in again.out
    assert head.read_bytes() == before
    other = bytearray(before)
    other[-64:] = bytes(64)  # some weights differ
    head.write_bytes(other)
    worse = {False: 1.5, True: 1.7}
    monkeypatch.setattr(Judgement, "tokens", property(lambda self: worse[self.result.draft == head.name]))
    kept = made(foredraft, model, prompts)
    assert "brings 1.50 tokens with it, and 1.70 with the head that is used now" in kept.out
    assert "the other one is better" in kept.out
    assert head.read_bytes() == other
    worse[True] = 1.3
    replaced = made(foredraft, model, prompts, "--json")
    assert json.loads(replaced.out)["compared"] == {"file": str(head), "tokens": 1.3}
    assert head.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--minutes", "0"), "more than 0"),
        (("--no-own",), "nothing to learn from"),
        (("-o", "head.gguf", "--install"), "exclude each other"),
        (("-o", "."), "is a folder"),
        (("-o", "nowhere/head.gguf"), "no folder nowhere"),
        (("--from", "nowhere.jsonl"), "no trace file"),
        (("--prompts", "nowhere.jsonl"), "no prompt file"),
    ],
)
def test_what_cannot_be_done_is_said(
    foredraft: Command,
    model: Path,
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = foredraft("draft", "make", model, "-t", 1, *arguments)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("flag", ["-o", "--safetensors", ""])
def test_where_nothing_can_be_written_is_said_before_training(
    foredraft: Command, model: Path, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs this may be allowed to write everywhere: the file system says no here."""
    place = tmp_path / "locked"
    place.mkdir()
    if not flag:
        monkeypatch.setattr(paths, "models_dir", lambda: place)

    def refused(**where: Path) -> IO[bytes]:
        if where["dir"] == place:
            raise PermissionError(13, "Permission denied", str(place))
        return TemporaryFile(dir=where["dir"])

    monkeypatch.setattr(draft_make, "TemporaryFile", refused)
    ran = foredraft("draft", "make", model, "-t", 1, *((flag, place / "head") if flag else ()))
    assert ran.code == 2
    assert f"Nothing can be written to {place}: Permission denied" in " ".join(ran.err.split())
    assert not paths.making_dir().exists()


def test_neither_the_model_nor_a_device_is_written_over(foredraft: Command, model: Path) -> None:
    before = model.read_bytes()
    ran = foredraft("draft", "make", model, "-o", model)
    assert ran.code == 2
    assert "the model itself" in ran.err
    assert model.read_bytes() == before
    ran = foredraft("draft", "make", model, "-o", os.devnull)
    assert ran.code == 2
    assert "is not a file" in ran.err


def test_without_safetensors_it_says_so_before_training(
    foredraft: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    ran = foredraft("draft", "make", model, "--safetensors", tmp_path / "head")
    assert ran.code != 0
    assert "[draft]" in ran.err
    assert not paths.making_dir().exists()


def test_a_work_folder_that_is_a_file_is_refused(foredraft: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("mine")
    ran = foredraft("draft", "make", model, "--work", tmp_path / "work")
    assert ran.code == 2
    assert "cannot be used" in ran.err
    assert (tmp_path / "work").read_text() == "mine"


def test_an_interruption_says_where_it_goes_on(
    foredraft: Command, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "read_rows", press)
    ran = made(foredraft, model, prompts)
    assert ran.code == 130
    assert "goes on from there" in ran.err


# --- list and remove -----------------------------------------------------------------------------------


def installed(model: Path, name: str, target: str = "One") -> Path:
    """A head in the models folder, as far as its header goes."""
    facts = HeadFacts(
        name="Head",
        sizes=Sizes(32, 16, 32, 64),
        layers=(1, 2, 3),
        target=model,
        target_name=target,
        target_hash="ab" * 16,
        target_vocabulary=384,
        context_length=512,
        acceptance=(0.5, 0.2, 0.1),
        made="2026-11-28 17:00",
    )
    path = heads_dir(paths.models_dir()) / name
    write_gguf(path, {"fc.weight": np.ones((32, 96), np.float32)}, np.arange(64), facts, "q8_0")
    return path


def test_no_heads(foredraft: Command) -> None:
    assert "No heads are installed" in foredraft("draft", "list").out
    assert json.loads(foredraft("draft", "list", "--json").out) == []


def test_the_list(foredraft: Command, model: Path) -> None:
    installed(model, "aaaa-one.gguf")
    (heads_dir(paths.models_dir()) / "bbbb-broken.gguf").write_bytes(b"GGUF")
    out = foredraft("draft", "list").out
    assert "aaaa-one" in out
    assert "50%, 40%, 50%" in out
    assert "bbbb-broken" in out


def test_packaged_heads_are_listed_and_stay(
    foredraft: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_heads, "PACKAGED", tmp_path)
    shipped = installed(model, "aaaa-one.gguf").rename(tmp_path / "aaaa-one.gguf")
    ran = foredraft("draft", "list")
    assert "aaaa-one" in ran.out
    assert "packaged" in ran.out
    own = installed(model, "aaaa-one-mine.gguf")
    packaged = {
        head["name"]: head["packaged"] for head in json.loads(foredraft("draft", "list", "--json").out)
    }
    assert packaged == {"aaaa-one-mine": False, "aaaa-one": True}
    assert foredraft("draft", "remove", "aaaa", "--yes").code == 0  # of those of the user's own
    assert not own.exists()
    ran = foredraft("draft", "remove", "aaaa", "--yes")
    assert ran.code == 2
    assert "comes with Foredraft" in ran.err
    assert shipped.exists()


def test_removing(foredraft: Command, model: Path) -> None:
    one, two = installed(model, "aaaa-one.gguf"), installed(model, "aabb-two.gguf", "Two")
    assert foredraft("draft", "remove", "aa", "--yes").code == 2
    assert foredraft("draft", "remove", "cc", "--yes").code == 2
    asked = foredraft("draft", "remove", "aaaa")
    assert (asked.code, one.exists()) == (2, True)
    assert "--yes" in asked.err
    assert foredraft("draft", "remove", "Two", "--yes").code == 0
    assert (one.exists(), two.exists()) == (True, False)
    assert foredraft("draft", "remove", "aaaa-one.gguf", "--yes").code == 0
    assert not one.exists()


def test_a_head_in_several_files_is_one(foredraft: Command) -> None:
    folder = heads_dir(paths.models_dir())
    folder.mkdir(parents=True)
    gguf_heads.tiny_eagle3(folder / "0123-m.gguf", split_tensors=6)
    parts = list(folder.iterdir())
    assert len(parts) > 1
    [head] = json.loads(foredraft("draft", "list", "--json").out)
    assert head["name"] == "0123-m"
    assert head["bytes"] == sum(part.stat().st_size for part in parts)
    assert foredraft("draft", "remove", "0123-m", "--yes").code == 0
    assert not list(folder.iterdir())


def test_the_list_fits_80_columns_and_breaks_no_name(foredraft: Command, model: Path) -> None:
    name = "0123456789abcdef-SmolLM2-135M-Instruct.Q4_1"
    installed(model, f"{name}.gguf", "SmolLM2 135M Instruct, a model whose name is rather long")
    lines = foredraft("draft", "list").out.splitlines()
    assert name in lines
    assert max(map(len, lines)) < 80
    assert "50%, 40%, 50%" in "\n".join(lines)


def test_several_heads_of_one_name_need_more_of_it(foredraft: Command, model: Path) -> None:
    """To remove one, and to draft with one."""
    one, two = installed(model, "abcd1-one.gguf"), installed(model, "abcd2-two.gguf")
    for ran in (
        foredraft("draft", "remove", "abcd", "--yes"),
        foredraft("run", "-m", model, "--speculate", "heads:model=abcd", "Hi"),
    ):
        assert ran.code == 2
        assert one.name in ran.err.replace("\n", "")
        assert two.name in ran.err.replace("\n", "")
    assert resolve_head("ABCD2", paths.models_dir()) == two
    folder = one.with_suffix("")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    assert foredraft("draft", "remove", "abcd1-one", "--yes").code == 2
    with pytest.raises(ConfigError, match="Several heads"):
        resolve_head("abcd1-one", paths.models_dir())
    assert foredraft("draft", "remove", one.name, "--yes").code == 0
    assert (one.exists(), folder.exists()) == (False, True)


@pytest.mark.parametrize("command", [("run", "-m"), ("chat", "-m"), ("bench",), ("draft", "make")])
def test_a_head_is_no_model(foredraft: Command, model: Path, command: tuple[str, ...]) -> None:
    """That it is one is said before anything that it lacks."""
    head = installed(model, "aaaa-one.gguf")
    ran = foredraft(*command, head, *(("Hi",) if command[0] == "run" else ()))
    assert ran.code == 2
    assert "is a head" in ran.err
    assert "heads:model=" in ran.err
    assert "chat template" not in ran.err


def test_without_a_name_nothing_is_removed(foredraft: Command, model: Path) -> None:
    """Every name begins with no letters."""
    head = installed(model, "aaaa-one.gguf")
    ran = foredraft("draft", "remove", "", "--yes")
    assert ran.code == 2
    assert "No name" in ran.err
    assert head.exists()


def test_links_to_nothing_are_listed_and_removed(foredraft: Command, tmp_path: Path) -> None:
    folder = heads_dir(paths.models_dir())
    folder.mkdir(parents=True)
    link = folder / "link.gguf"
    link.symlink_to(tmp_path / "gone.gguf")
    ran = foredraft("draft", "list")
    assert ran.code == 0, ran.err
    assert "cannot be read" in ran.out
    assert foredraft("draft", "remove", "link", "--yes").code == 0
    assert not link.is_symlink()


def test_of_a_link_to_a_folder_the_link_is_removed(foredraft: Command, tmp_path: Path) -> None:
    folder = heads_dir(paths.models_dir())
    folder.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text("{}")
    (folder / "theirs").symlink_to(mine)
    assert foredraft("draft", "remove", "theirs", "--yes").code == 0
    assert not (folder / "theirs").is_symlink()
    assert (mine / "config.json").exists()


def test_names_that_look_like_markup_are_names(foredraft: Command, model: Path) -> None:
    installed(model, "a[.gguf", "One [/x]")
    ran = foredraft("draft", "list")
    assert ran.code == 0, ran.err
    assert "One [/x]" in ran.out
    assert foredraft("draft", "remove", "One [/x]", "--yes").code == 0
