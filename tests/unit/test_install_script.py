"""`scripts/install.py`: what pip is asked for, on a processor that there are kernels for and on another."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install.py"
KNOWN = "processor : 0\nflags\t\t: fpu avx2 fma f16c\n"
UNKNOWN = "processor : 0\nflags\t\t: fpu avx f16c\n"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The script's names, with what pip was run with in `ran`; pip answers `code`."""
    names: dict[str, Any] = runpy.run_path(str(SCRIPT))
    script = SimpleNamespace(ran=[], code=0, **names)

    def run(command: list[str], **variables: str) -> int:
        script.ran.append((command, variables))
        code: int = script.code
        return code

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXXFLAGS", raising=False)
    monkeypatch.setattr("sys.argv", ["install.py", "dev"])
    globals_of = names["main"].__globals__
    monkeypatch.setitem(globals_of, "run", run)
    monkeypatch.setitem(globals_of, "find_spec", lambda name: None)
    script.set = lambda name, value: monkeypatch.setitem(globals_of, name, value)
    return script


def processor(install: SimpleNamespace, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    install.set("CPU_INFO", file)


def test_without_kernels_pip_is_run_once(install: SimpleNamespace, tmp_path: Path) -> None:
    processor(install, tmp_path, UNKNOWN)
    assert install.main() == 0
    [(command, variables)] = install.ran
    assert command[4:7] == ["install", "-e", f"{SCRIPT.parents[1]}[dev]"]
    assert install.LLAMA_CPP in command
    constraints = Path(command[command.index("-c") + 1]).read_text(encoding="utf-8")
    assert {"torch==2.13.0", "transformers==5.24.0"} <= set(constraints.splitlines())
    assert not variables


def test_llama_cpp_is_compiled_with_the_kernels(install: SimpleNamespace, tmp_path: Path) -> None:
    processor(install, tmp_path, KNOWN)
    assert install.main() == 0
    (compiled, variables), (installed, _) = install.ran
    assert compiled[4] == "wheel"
    assert compiled[-1] == install.LLAMA_CPP
    include, header = shlex.split(variables["CXXFLAGS"])
    assert include == "-include"
    assert {"attention.h", "few_rows_packed.h", "amx_tiles.h"} <= set(Path(header).read_text().split('"'))
    wheels = Path(compiled[compiled.index("-w") + 1])
    assert installed[installed.index("--find-links") + 1] == str(wheels)
    assert installed[installed.index("-e") + 1] == f"{SCRIPT.parents[1]}[dev]"
    wheels.mkdir(parents=True)
    (wheels / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl").touch()
    install.ran.clear()
    assert install.main() == 0
    [(again, _)] = install.ran
    assert again[4] == "install"
    assert str(wheels) in again


def test_what_was_compiled_for_another_processor_or_by_another_compiler_is_not_taken(
    install: SimpleNamespace, tmp_path: Path
) -> None:
    processor(install, tmp_path, KNOWN)
    first = install.wheels_with_kernels()
    assert first == install.wheels_with_kernels()
    processor(install, tmp_path, KNOWN.replace("fpu", "fpu avx10"))
    assert install.wheels_with_kernels() != first
    processor(install, tmp_path, KNOWN)
    install.set("compiler", lambda: "another one")
    assert install.wheels_with_kernels() not in (first, None)


def test_kernels_that_do_not_compile_are_done_without(install: SimpleNamespace, tmp_path: Path) -> None:
    processor(install, tmp_path, KNOWN)
    install.code = 7
    assert install.main() == 7
    (compiled, with_kernels), (installed, without) = install.ran
    assert (compiled[4], installed[4]) == ("wheel", "install")
    assert "kernels.h" in with_kernels["CXXFLAGS"]
    assert "--find-links" not in installed
    assert not without


def test_what_is_installed_already_is_not_compiled_again(install: SimpleNamespace, tmp_path: Path) -> None:
    processor(install, tmp_path, KNOWN)
    install.set("find_spec", lambda name: object())
    assert install.main() == 0
    [(command, _)] = install.ran
    assert command[4] == "install"
    assert "--find-links" not in command


def test_a_system_that_does_not_describe_its_processor(install: SimpleNamespace, tmp_path: Path) -> None:
    install.set("CPU_INFO", tmp_path / "none")
    assert install.wheels_with_kernels() is None


@pytest.mark.parametrize(
    ("log", "step"),
    [
        ("", "starting"),
        ("  Building wheel for llama-cpp-python (pyproject.toml): started\n", "compiling llama.cpp"),
        ("Collecting numpy\nWARNING: retrying\n", "Collecting numpy"),
    ],
)
def test_what_takes_long_has_a_name(install: SimpleNamespace, log: str, step: str) -> None:
    assert install.current_step(log).startswith(step)
