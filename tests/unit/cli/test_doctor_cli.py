"""`foredraft doctor`: what it finds, whether it says so, and that nothing stops it from saying it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest

import foredraft as package
import gguf_factory
from command_line import Command
from foredraft import Engine
from foredraft.backends.comparison import Effort
from foredraft.cli import diagnosis, doctor
from foredraft.cli.diagnosis import BATCHES
from foredraft.errors import BackendError
from foredraft.installation import add_extra
from foredraft.library.catalogue import install_default_model
from foredraft.testing import FakeModel
from foredraft.types import Rollback

SECTIONS = [
    *("Software", "Machine", "PyTorch", "Model", "Loaded", "Chat template", "Exactness", "Tools"),
    *("Speculation", "Memory", "Drafters", "Storage"),
]


@pytest.fixture(autouse=True)
def _little_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MEASURING_SECONDS", 0.3)


def as_json(command: Command, *arguments: object) -> dict[str, Any]:
    ran = command("doctor", "-t", 1, "--json", *arguments)
    value: dict[str, Any] = json.loads(ran.out)
    assert value["can_run"] is (ran.code == 0)
    return value


# --- a model that runs ---------------------------------------------------------------------------------


def test_every_section_is_printed(foredraft: Command, tiny: Path) -> None:
    ran = foredraft("doctor", tiny, "-t", 1)
    assert (ran.code, ran.err) == (0, "")
    titles = [line for line in ran.out.splitlines() if line and not line.startswith(" ")]
    assert titles == [*SECTIONS, "This model can run."]
    assert str(tiny) in ran.out
    assert "\x1b" not in ran.out


def test_every_section_is_in_the_json_object(foredraft: Command, tiny: Path) -> None:
    value = as_json(foredraft, tiny)
    assert list(value) == ["can_run", "problems", *(title.lower() for title in SECTIONS)]
    assert value["problems"] == []
    assert value["software"]["foredraft"] == package.__version__
    assert value["machine"]["cores"] >= 1
    assert value["model"]["path"] == str(tiny)
    assert value["model"]["size"] == tiny.stat().st_size
    assert (value["model"]["quantization"], value["model"]["context"]) == ("F32", 512)
    assert value["model"]["default"] is False
    assert value["loaded"]["settings"]["threads"] == "1"


def test_the_settings_are_those_given(foredraft: Command, tiny: Path) -> None:
    value = as_json(foredraft, tiny, "--ctx", 256, "--kv-type", "f16")
    assert value["loaded"]["context_length"] == 256
    assert value["loaded"]["settings"]["kv_type"] == "f16/f16"


def test_the_default_model(foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.library.names.default_model", lambda: tiny)
    monkeypatch.setattr("foredraft.library.default_model", lambda: tiny)
    assert as_json(foredraft)["model"]["default"] is True
    assert f"{tiny} (the default model)" in foredraft("doctor", "-t", 1).out


def test_exactness_is_what_a_run_reports(foredraft: Command, tmp_path: Path) -> None:
    for weights in ("f32", "q4_0"):
        path = gguf_factory.tiny_llama(tmp_path / f"{weights}.gguf", weight_type=weights)
        found = as_json(foredraft, path)["exactness"]
        ran = foredraft("run", path, "Hello", "-t", 1, "-n", 1, "--json")
        spec = json.loads(ran.out)["speculation"]
        assert found == {"exact": spec["exact"], "note": spec["exact_reason"]}


def test_a_thorough_check_is_kept_for_one_request_and_for_several(
    foredraft: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.backends.probe.THOROUGH", Effort(0.3, thorough=True))
    path = gguf_factory.tiny_llama(tmp_path / "model.gguf", weight_type="q8_0")
    found = as_json(foredraft, path, "--thorough", "--ctx", 128)
    several = found["exactness of 4 requests at once"]
    assert "beside other sequences" in several["note"]
    assert "beside other sequences" not in found["exactness"]["note"]
    assert as_json(foredraft, path, "--ctx", 128)["exactness"] == found["exactness"]


@pytest.mark.parametrize(
    ("template", "known"),
    [("{% if tools %}<function_call>{% endif %}", False), ("{% if tools %}[TOOL_CALLS]{% endif %}", True)],
)
def test_whether_the_form_of_tool_calls_is_known(
    foredraft: Command, tmp_path: Path, template: str, known: bool
) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tools.gguf", chat_template=template)
    value = as_json(foredraft, path)["tools"]
    assert value["known"] is known
    assert ("mistral" if known else "an unknown form") in value["note"]
    assert value["note"] in " ".join(foredraft("doctor", path, "-t", 1).out.split())


@pytest.mark.parametrize(("exact", "says"), [(True, "the same bytes"), (False, "not always the bytes")])
def test_exactness_in_words(exact: bool, says: str) -> None:
    model = FakeModel().with_capabilities(batch_invariant=exact)
    rows = doctor._exactness_rows(doctor.Exactness(exact, "as measured"), model.capabilities)
    text = dict(rows)
    assert says in text["exact"]
    assert text["measured"] == "as measured"


# --- speculation ---------------------------------------------------------------------------------------


def test_speculation(foredraft: Command, tiny: Path) -> None:
    found = as_json(foredraft, tiny)["speculation"]
    assert (found["runs"], found["reason"]) == (True, None)
    assert "suffix" in found["drafters"]
    assert found["step_ms"] > 0
    assert [point["draft"] for point in found["break_even"]] == [rows - 1 for rows in BATCHES]
    assert all(point["cost"] > 0 for point in found["break_even"])


def test_memory(foredraft: Command, tiny: Path) -> None:
    found = as_json(foredraft, tiny, "--ctx", 256)["memory"]
    assert found["cells"] == 256
    assert {"weights_mapped", "kv_cache", "compute"} <= set(found["parts"])
    assert all(size >= 0 for size in found["parts"].values())
    said = foredraft("doctor", tiny, "-t", 1, "--ctx", 256).out
    assert "for 256 tokens (used as tokens are written)" in said
    if sys.platform == "linux":
        assert found["resident"] > found["anonymous"] > 0
        assert "of it anonymous" in said


def test_a_recurrent_model_says_why_not() -> None:
    model = FakeModel().with_capabilities(rollback=Rollback.BOUNDED)
    engine = Engine(model)
    engine.set_speculation("auto")
    found = diagnosis.speculation(engine)
    assert not found.runs
    assert found.reason is not None
    assert "recurrent state" in found.reason
    assert (found.step_ms, found.break_even, model.forwards) == (None, (), [])
    rows = dict(doctor._speculation_rows(found))
    assert "does not run" in rows["auto"]
    assert "recurrent state" in rows["auto"]


@pytest.mark.parametrize(
    ("draft", "cost", "says"),
    [
        (3, 2.5, "takes 2.50 plain steps: pays from 1.50 accepted tokens on"),
        (3, 4.0, "does not pay even if all of it is accepted"),
        (1, 0.98, "pays from 0.00 accepted tokens on"),
    ],
)
def test_break_even_in_words(draft: int, cost: float, says: str) -> None:
    assert says in doctor._break_even_text(diagnosis.BreakEven(draft, cost))


# --- a model that does not -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (None, "There is no file"),
        (gguf_factory.not_gguf, "not a GGUF file"),
        (gguf_factory.vocab_only, "only a vocabulary"),
        (gguf_factory.unknown_architecture, "does not support"),
    ],
)
def test_a_model_that_cannot_run(foredraft: Command, tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "bad.gguf"
    if make:
        make(path)
    ran = foredraft("doctor", path, "-t", 1)
    assert ran.code == 2
    assert says in ran.out
    assert "what to do" in ran.out
    assert ran.err.startswith("Error: ")
    assert says in ran.err
    assert "Traceback" not in ran.out + ran.err
    assert "can run" not in ran.out
    assert "Storage" in ran.out  # the rest is said all the same
    (problem,) = as_json(foredraft, path)["problems"]
    assert says in problem["message"]
    assert problem["hint"]


def test_a_setting_that_does_not_fit(foredraft: Command, tiny: Path) -> None:
    ran = foredraft("doctor", tiny, "-t", 1, "--ctx", 100_000)
    assert ran.code == 2
    assert "trained for 512 tokens" in ran.out
    assert str(tiny) in ran.out  # what is known of the file is said


def test_no_model_at_all(foredraft: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.library.names.default_model", lambda: None)
    ran = foredraft("doctor")
    assert ran.code == 2
    assert "no default model is installed" in ran.err
    assert install_default_model() in ran.err


# --- what is not installed -----------------------------------------------------------------------------

WITHOUT_LLAMA_CPP = """
import sys
sys.modules["xllamacpp"] = None
from foredraft.cli import run_command
sys.exit(run_command(sys.argv[1:]))
"""


def test_without_llama_cpp(own_cache: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_LLAMA_CPP, "doctor", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert add_extra("llamacpp") in ran.stderr
    value = json.loads(ran.stdout)
    versions = {entry["name"]: entry["version"] for entry in value["software"]["packages"]}
    assert versions["xllamacpp"] is None
    assert value["problems"][0]["hint"] == f"Install it with: {add_extra('llamacpp')}"
    assert value["machine"]["gpu_offload"] is False
    assert "suffix" in value["drafters"]["available"]


def test_a_llama_cpp_that_does_not_load(
    foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(cache: Path, chosen: Path | None) -> None:
        raise BackendError("The llama.cpp library cannot be loaded.", hint="Install it again.")

    monkeypatch.setattr("foredraft.backends.llamacpp.system.llama_cpp_facts", broken)
    ran = foredraft("doctor", tiny)
    assert ran.code == 2
    assert "cannot be loaded" in ran.out
    assert "Install it again" in ran.err


def test_what_is_absent_comes_with_the_line_that_installs_it(
    foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "find_spec", lambda module: None)
    out = foredraft("doctor", tiny, "-t", 1).out
    for extra in ("llamacpp", "hub", "torch"):
        assert add_extra(extra) in out
        assert extra in metadata("foredraft").get_all("Provides-Extra", [])


# --- machine, drafters, storage ------------------------------------------------------------------------


def test_what_the_machine_has_and_llama_cpp_does_not_use() -> None:
    from foredraft.backends.llamacpp.devices import Device
    from foredraft.backends.llamacpp.system import LlamaCpp, processor_features

    has = processor_features()
    gpu = Device("CUDA0", "GPU", "A big GPU", 24_000_000_000)
    llama = LlamaCpp("llama.cpp", "/a.so", True, (), (gpu,))
    machine = diagnosis.machine(llama)
    assert machine.unused == (has or ())
    rows = dict(doctor._machine_rows(machine, llama))
    assert rows["GPU offload"] == "yes"
    assert rows["device"] == "CUDA0 (GPU): A big GPU, 24.0 GB"
    assert ("not used" in rows) is bool(has)


def test_own_kernels_are_named_or_said_to_be_missing() -> None:
    from foredraft.backends.llamacpp.system import LlamaCpp

    def rows(kernels: str) -> dict[str, str]:
        llama = LlamaCpp("llama.cpp", "/a.so", False, (), (), kernels, "" if kernels else "no [avx2] here")
        return dict(doctor._machine_rows(diagnosis.machine(llama), llama))

    assert rows("attention")["own kernels"] == "attention"
    assert rows("")["own kernels"] == r"[yellow]left out[/]: no \[avx2] here"
    assert rows("")["llama.cpp"] == "llama.cpp, /a.so"


def test_a_library_that_the_user_named() -> None:
    from foredraft.backends.llamacpp.system import LlamaCpp

    reason = "libggml-cuda.so: libcuda.so.1: cannot open shared object file"
    llama = LlamaCpp(
        "llama.cpp /a.so (1a2b3c4d, CUDA)",
        "/a.so",
        gpu_offload=False,
        features=(),
        devices=(),
        chosen=True,
        built_for=("CUDA",),
        unloaded=(reason,),
        said=("ggml_cuda_init: no CUDA-capable device is detected",),
    )
    rows = dict(doctor._machine_rows(diagnosis.machine(llama), llama))
    assert rows["llama.cpp"].startswith("llama.cpp /a.so (1a2b3c4d, CUDA)")
    assert "named with --llama-library" in rows["llama.cpp"]
    assert reason in rows["not loaded"]
    assert rows["GPU offload"] == "no: this library was built for CUDA and finds no GPU"
    assert rows["ggml says"] == "ggml_cuda_init: no CUDA-capable device is detected"


def test_the_devices_are_listed(foredraft: Command, tiny: Path) -> None:
    machine = as_json(foredraft, tiny)["machine"]
    assert [device["kind"] for device in machine["devices"]][:1] == ["processor"]
    assert Path(machine["llama_library"]).is_file()
    assert machine["chosen"] is False
    assert "  device            CPU (processor): " in foredraft("doctor", tiny, "-t", 1).out
