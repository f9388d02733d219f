"""Safetensors at the command line: named in every way there is, diagnosed, measured, pulled and used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torch_factory
from command_line import Command
from foredraft import Engine
from foredraft.cli import diagnosis, diagnosis_torch, doctor, paths
from foredraft.cli.diagnosis_torch import PyTorch, torch_facts
from foredraft.errors import BackendError, MissingDependencyError
from foredraft.installation import add_extra
from hub_server import isolated_hub
from safetensors_factory import sharded, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose name has a dot in it."""
    return torch_factory.make_tiny_llama(tmp_path_factory.mktemp("models") / "My-1.5B")


@pytest.fixture(autouse=True)
def _little_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MEASURING_SECONDS", 0.1)


def text_of(command: Command, model: object) -> str:
    ran = command("run", model, "Hello", "-t", 1, "-n", 4, "--gpu-layers", 0, "--temp", 0, "--json")
    assert ran.code == 0, ran.err
    return str(json.loads(ran.out)["text"])


# --- naming it -----------------------------------------------------------------------------------------


def test_a_folder_and_its_files_are_the_same_model(foredraft: Command, folder: Path) -> None:
    texts = {
        text_of(foredraft, path) for path in (folder, folder / "config.json", folder / "model.safetensors")
    }
    assert len(texts) == 1
    with Engine.load(folder / "config.json", threads=1, gpu_layers=0) as engine:
        assert (engine.model.info.name, engine.model.info.path) == ("My-1.5B", str(folder))


def test_pulled_from_the_hub_and_used_by_name(
    foredraft: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    parts = write(tmp_path / "parts", {path.name: path.read_bytes() for path in folder.iterdir()})
    (parts / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(parts, max_shard_size="150KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    with isolated_hub(monkeypatch, tmp_path) as hub:
        hub.repositories["owner/My-1.5B"] = {path.name: path.read_bytes() for path in parts.iterdir()}
        assert foredraft("models", "pull", "owner/My-1.5B").code == 0
    expected = text_of(foredraft, folder)
    for name in ("owner/My-1.5B", "my-1.5b", "owner/My-1.5B:safetensors"):
        assert text_of(foredraft, name) == expected
    (shown,) = [
        model
        for model in json.loads(foredraft("models", "list", "--json").out)
        if model["source"] == "pulled"
    ]
    assert shown["size_bytes"] == sum(path.stat().st_size for path in parts.glob("*.safetensors"))


def test_an_incomplete_folder_says_what_is_missing(foredraft: Command) -> None:
    folder = write(paths.models_dir() / "owner" / "Many", sharded())
    (folder / "model-00002-of-00002.safetensors").unlink()
    ran = foredraft("doctor", "owner/Many", "-t", 1)
    assert ran.code == 2
    assert "is incomplete: model-00002-of-00002.safetensors is missing" in ran.err
    assert "Pull it again" in ran.err


# --- profile -------------------------------------------------------------------------------------------


def test_profile(foredraft: Command, folder: Path) -> None:
    ran = foredraft("profile", folder, "--quick", "--depth", 16, "-t", 1, "--gpu-layers", 0, "--json", "-")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["model"] == "My-1.5B"


# --- doctor --------------------------------------------------------------------------------------------


def as_json(command: Command, *arguments: object) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(command("doctor", "-t", 1, "--json", *arguments).out)
    return value


@pytest.mark.parametrize("name", [".", "config.json"])
def test_doctor_knows_the_folder(foredraft: Command, folder: Path, name: str) -> None:
    value = as_json(foredraft, folder / name, "--gpu-layers", 0)
    assert value["can_run"], value["problems"]
    model = value["model"]
    assert (model["path"], model["architecture"], model["quantization"]) == (str(folder), "llama", "F32")
    assert model["size"] == (folder / "model.safetensors").stat().st_size
    assert model["context"] == torch_factory.CONTEXT
    assert value["loaded"]["settings"]["forward"] == "lean"
    assert value["loaded"]["settings"]["format"] == "fp32"
    assert value["exactness"]["note"]


def test_doctor_says_which_forward_computes(foredraft: Command, tmp_path: Path) -> None:
    folder = torch_factory.make_model(tmp_path / "other", "gpt2")
    value = as_json(foredraft, folder, "--gpu-layers", 0)
    assert value["loaded"]["settings"]["forward"] == "transformers"


def test_doctor_says_why_a_folder_does_not_load(foredraft: Command, tmp_path: Path) -> None:
    folder = write(tmp_path / "Unknown", sharded())
    (folder / "config.json").write_text('{"model_type": "nothing_like_it"}')
    ran = foredraft("doctor", folder, "-t", 1)
    assert ran.code == 2
    assert "transformers cannot run Unknown" in ran.err
    assert "Traceback" not in ran.err


def test_torch_is_asked(foredraft: Command, folder: Path) -> None:
    import torch

    facts = torch_facts()
    assert facts.version == torch.__version__
    assert set(facts.formats) == {"fp32", "bf16", "fp16"}
    assert facts.formats["fp32"] == "fp32"
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert facts.device == "cpu"
        assert facts.formats["bf16"] == ("bf16" if facts.bf16 else "fp32")
    value = as_json(foredraft, folder)
    assert value["pytorch"]["version"] == torch.__version__
    assert value["loaded"]["settings"]["format"] == value["pytorch"]["formats"]["fp32"]
    with Engine.load(folder, threads=1, gpu_layers=0, probe=False) as engine:
        assert (engine.model.info.settings["products"] == "packed") is facts.onednn


@pytest.mark.parametrize("has_bf16", [True, False])
def test_instructions_for_bf16(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.backends.torch.loading._processor_has_bf16", lambda: has_bf16)
    facts = torch_facts()
    assert facts.bf16 is has_bf16
    if facts.device == "cpu":
        rows = dict(doctor._torch_rows(facts))
        assert ("no instructions" in rows.get("bf16", "")) is not has_bf16
        assert f"bf16 in {'bf16' if has_bf16 else 'fp32'}" in rows["computes"]


@pytest.mark.parametrize("there", [True, False])
def test_it_names_fbgemm_where_weights_are_held_in_half_width(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.backends.torch.half._has_halves", lambda: there)
    facts = torch_facts()
    assert facts.fbgemm is (there and facts.onednn and not facts.bf16)
    assert ("FBGEMM" in dict(doctor._torch_rows(facts))["products"]) is facts.fbgemm


def test_without_onednn() -> None:
    facts = PyTorch("1", "2", "cpu", {"fp32": "fp32"}, bf16=True, onednn=False)
    assert "not exact" in dict(doctor._torch_rows(facts))["products"]


# --- what is not installed -----------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from foredraft.cli import run_command
sys.exit(run_command(sys.argv[1:]))
"""


def without(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT, module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_torch(folder: Path) -> None:
    ran = without("torch", "doctor", folder, "--json")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    value = json.loads(ran.stdout)
    assert value["pytorch"] is None
    assert value["problems"][0]["hint"] == f"Install it with: {add_extra('torch')}"


def test_a_gguf_needs_no_torch(tiny: Path) -> None:
    ran = without("torch", "doctor", tiny, "-t", 1)
    assert ran.returncode == 0, ran.stderr
    assert add_extra("torch") in ran.stdout


def test_safetensors_need_no_llama_cpp(folder: Path) -> None:
    ran = without("xllamacpp", "doctor", folder, "-t", 1)
    assert ran.returncode == 0, ran.stderr
    assert add_extra("llamacpp") in ran.stdout
    assert "This model can run." in ran.stdout


def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unloadable:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "foredraft.backends.torch.loading":
                raise OSError("libtorch_cpu.so: cannot open shared object file")

    import foredraft.backends.torch as package

    monkeypatch.delitem(sys.modules, "foredraft.backends.torch.loading", raising=False)
    monkeypatch.delattr(package, "loading", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Unloadable(), *sys.meta_path])
    with pytest.raises(BackendError, match="cannot open shared object") as caught:
        diagnosis_torch.torch_facts()
    assert "pip install --force-reinstall" in str(caught.value.hint)


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_the_error_names_the_module(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import foredraft.backends.torch as package

    monkeypatch.delitem(sys.modules, "foredraft.backends.torch.loading", raising=False)
    monkeypatch.delattr(package, "loading", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=module):
        diagnosis_torch.torch_facts()
