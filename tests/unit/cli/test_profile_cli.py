"""`foredraft profile`: what it prints, what it keeps, and what it says before it measures."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import Command, Ran
from foredraft.bench.cost_measure import Plan, measure_profile
from foredraft.bench.curves import find_curve
from foredraft.cli import profile as module
from foredraft.engine.profile_store import Profile, ProfileStore, files
from foredraft.installation import add_extra

LITTLE = Plan((1, 2, 4, 8), (16, 64), repeats=3, seconds=0.5)


@pytest.fixture(autouse=True)
def _little_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL", LITTLE)
    monkeypatch.setattr(module, "QUICK", replace(LITTLE, depths=(32,)))


def profiled(command: Command, tiny: Path, *arguments: object) -> Ran:
    return command("profile", tiny, "-t", 1, *arguments)


def stored(own_cache: Path) -> list[Profile]:
    return ProfileStore(own_cache / "profiles").all()


# --- the table -----------------------------------------------------------------------------------------


def test_the_table(foredraft: Command, tiny: Path) -> None:
    ran = profiled(foredraft, tiny)
    assert ran.code == 0, ran.err
    assert re.search("1 thread, KV bf16/b?f16", ran.out)
    for title in ("16 tokens in the KV cache", "64 tokens in the KV cache"):
        assert title in ran.out
    rows = [line.split() for line in ran.out.splitlines() if line.split()[:1] in (["1"], ["8"])]
    assert [row[0] for row in rows] == ["1", "8", "1", "8"]
    for row in rows:
        assert float(row[1]) > 0
    assert "pays from" in ran.out
    assert "\x1b" not in ran.out
    assert "Traceback" not in ran.err


def test_quick(foredraft: Command, tiny: Path) -> None:
    out = profiled(foredraft, tiny, "--quick").out
    assert "32 tokens in the KV cache" in out
    assert "16 tokens in the KV cache" not in out


def test_depths_of_ones_own(foredraft: Command, tiny: Path, own_cache: Path) -> None:
    assert profiled(foredraft, tiny, "--depth", 100, "--depth", 24, "--depth", 100).code == 0
    assert list(stored(own_cache)[0].curve) == [24, 100]


# --- what is kept --------------------------------------------------------------------------------------


def test_the_profile_is_saved_for_runs_with_the_same_settings(
    foredraft: Command, tiny: Path, own_cache: Path
) -> None:
    ran = profiled(foredraft, tiny)
    (profile,) = stored(own_cache)
    assert str(own_cache / "profiles") in ran.err
    assert "forget --profiles" in ran.err
    assert list(profile.curve) == [16, 64]
    assert list(profile.curve[16]) == [1, 2, 4, 8]
    assert (profile.key.threads, profile.key.device) == ("1", "cpu")
    assert profile.key.kv_type in {"bf16/f16", "bf16/bf16"}
    profiled(foredraft, tiny, "--kv-type", "f16")
    assert len(stored(own_cache)) == 2
    assert "profiles" in foredraft("doctor", tiny, "-t", 1).out


def test_no_save(foredraft: Command, tiny: Path, own_cache: Path) -> None:
    ran = profiled(foredraft, tiny, "--no-save")
    assert ran.code == 0
    assert "Saved" not in ran.err
    assert not (own_cache / "profiles").exists()


def test_what_runs_have_learnt_stays(foredraft: Command, tiny: Path, own_cache: Path) -> None:
    profiled(foredraft, tiny)
    store = ProfileStore(own_cache / "profiles")
    (first,) = store.all()
    curve = {8: {1: 999.0}}
    store.save(replace(first, curve=curve, rounds=7, learnt={"suffix": [1, 2]}))
    profiled(foredraft, tiny)
    (again,) = store.all()
    assert again.learnt == {"suffix": [1, 2]}
    assert list(again.curve) == [16, 64]
    assert again.measured_at > first.measured_at


def test_a_damaged_profile_is_replaced(
    foredraft: Command, tiny: Path, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiled(foredraft, tiny)
    (file,) = files(own_cache / "profiles")
    file.write_bytes(file.read_bytes()[:50])
    with caplog.at_level(logging.WARNING):
        assert profiled(foredraft, tiny).code == 0
    assert "Ignoring the stored profile" in caplog.text
    assert len(stored(own_cache)) == 1


def test_a_profile_that_cannot_be_saved(
    foredraft: Command, tiny: Path, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (own_cache / "profiles").write_text("in the way")
    ran = profiled(foredraft, tiny)
    assert ran.code == 0
    assert "pays from" in ran.out
    assert "Saved" not in ran.err
    assert "cannot be saved" in caplog.text


# --- JSON and plot -------------------------------------------------------------------------------------


def test_json_on_standard_output(foredraft: Command, tiny: Path) -> None:
    ran = profiled(foredraft, tiny, "--json", "-")
    data: dict[str, Any] = json.loads(ran.out)
    assert [part["depth"] for part in data["depths"]] == [16, 64]
    assert data["key"]["threads"] == "1"
    assert "pays from" in ran.err  # the table is still to be seen


def test_json_in_a_file_is_a_curve(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text("an older one")
    ran = profiled(foredraft, tiny, "--json", file)
    assert ran.code == 0
    assert "pays from" in ran.out
    curve = find_curve(str(file))
    assert list(curve.points) == [1, 2, 4, 8]


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_plot(foredraft: Command, tiny: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"curve.{kind}"
    ran = profiled(foredraft, tiny, "--plot", file)
    assert ran.code == 0, ran.err
    assert file.stat().st_size > 10_000
    assert str(file) in ran.err


# --- said before anything is measured ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--json", "{}/nowhere/p.json"), "no folder"),
        (("--json", "{}"), "is a folder"),
        (("--json", "{}/model.gguf"), "not a .json file"),
        (("--plot", "{}/curve.pdf"), ".png or .svg"),
        (("--plot", "{}/nowhere/curve.png"), "no folder"),
        (("--depth", "505"), "does not fit"),
        (("--depth", "0"), "--depth"),
        (("--ctx", "2"), "no room for a draft"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_done(
    foredraft: Command, tiny: Path, tmp_path: Path, own_cache: Path, arguments: Sequence[str], says: str
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    ran = profiled(foredraft, tiny, *(argument.replace("{}", str(tmp_path)) for argument in arguments))
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert not (own_cache / "profiles").exists()
    assert (tmp_path / "model.gguf").read_bytes() == b"GGUF"


def test_a_plot_without_matplotlib(
    foredraft: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = profiled(foredraft, tiny, "--plot", tmp_path / "curve.png")
    assert ran.code == 2
    assert add_extra("bench") in ran.err
    assert ran.out == ""
    assert profiled(foredraft, tiny).code == 0, "only the plot needs it"


def test_a_model_that_is_not_there(foredraft: Command, tmp_path: Path) -> None:
    ran = foredraft("profile", tmp_path / "none.gguf")
    assert ran.code == 2
    assert "There is no file" in ran.err


def test_ctrl_c_leaves_nothing(
    foredraft: Command, tiny: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        def stop(fraction: float) -> None:
            if fraction > 0.5:
                raise KeyboardInterrupt

        measure_profile(*arguments, **{**options, "progress": stop})

    monkeypatch.setattr(module, "measure_profile", interrupted)
    ran = profiled(foredraft, tiny)
    assert (ran.code, ran.out) == (130, "")
    assert not (own_cache / "profiles").exists()


# --- the real model ------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_default_model(foredraft: Command, model_path: Path, own_cache: Path) -> None:
    ran = foredraft("profile", model_path, "-t", 1, "--depth", 16)
    assert ran.code == 0, ran.err
    (profile,) = stored(own_cache)
    assert "smollm2" in profile.name.lower()
    assert profile.curve[16][1] > 0
    assert profile.snapshot_ms is not None
