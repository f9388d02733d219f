"""Which llama.cpp library is used, and that one that does not fit is refused with what to install."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.backends.llamacpp import abi, binding
from foredraft.errors import BackendError, ConfigError, MissingDependencyError
from foredraft.installation import add_extra


def test_the_library_is_that_of_the_pinned_wheel() -> None:
    library = binding.library()
    assert "xllamacpp" in library.path.name
    assert not library.chosen
    assert abi.VERSION in library.key
    assert abi.VERSION in library.name


def test_every_function_has_its_signature() -> None:
    binding.lib.llama_supports_gpu_offload()
    bound = vars(binding.lib)
    assert set(abi.SIGNATURES) <= set(bound)
    for name, (result, arguments) in abi.SIGNATURES.items():
        assert bound[name].restype is result
        assert tuple(bound[name].argtypes) == arguments


def test_a_name_that_is_not_bound_is_no_attribute() -> None:
    with pytest.raises(AttributeError):
        _ = binding.lib.unbound


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, binding.PACKAGE, None)
    with pytest.raises(MissingDependencyError) as caught:
        binding._packaged()
    assert caught.value.hint == f"Install it with: {add_extra('llamacpp')}"


def test_a_package_without_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / binding.PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError, match="has no library") as caught:
        binding._packaged()
    assert "--force-reinstall" in (caught.value.hint or "")


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "libllama.so"
    file.write_text("no library")
    with pytest.raises(BackendError, match="cannot be loaded"):
        binding._opened(file)


def test_a_missing_openmp_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lacking(_path: str) -> None:
        raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", lacking)
    with pytest.raises(BackendError) as caught:
        binding._opened(tmp_path / "libllama.so")
    assert "apt install libgomp1" in (caught.value.hint or "")


# --- another llama.cpp ---------------------------------------------------------------------------------


class Other:
    """The process's library, except for some of its functions."""

    def __init__(self, **functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        if name in self._functions:
            if self._functions[name] is None:
                raise AttributeError(name)
            return self._functions[name]
        return getattr(binding.library().handle, name)


class Answer:
    """A function without arguments."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self) -> Any:
        return self._value


def model_params(**changes: object) -> abi.llama_model_params:
    params = binding.lib.llama_model_default_params()
    for name, value in changes.items():
        setattr(params, name, value)
    return params


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ({"llama_decode": None}, "lacks 1 functions .llama_decode."),
        ({"llama_version": Answer(b"0.5.0")}, "its llama.cpp version is 0.5.0"),
        ({"ggml_version": Answer(b"0.9.4")}, "its ggml version is 0.9.4"),
        ({"llama_model_default_params": Answer(model_params(load_mtp=True))}, "another load_mtp"),
    ],
    ids=["lacks a function", "another llama.cpp", "another ggml", "other structs"],
)
def test_another_llama_cpp_is_refused(functions: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=reason) as caught:
        binding._check(Other(**functions), tmp_path / "libllama.so")  # type: ignore[arg-type]
    assert abi.VERSION.rpartition(".")[2] in caught.value.message
    assert f"xllamacpp=={abi.VERSION}" in (caught.value.hint or "")


def test_the_same_llama_cpp_is_not_refused(tmp_path: Path) -> None:
    binding._check(Other(), tmp_path / "libllama.so")  # type: ignore[arg-type]


# --- one that the user names ---------------------------------------------------------------------------


def test_a_library_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no llama\.cpp library"):
        binding.choose(tmp_path / "libllama.so")


def test_a_process_has_one_library(tmp_path: Path) -> None:
    binding.choose(binding.library().path)
    other = tmp_path / "libllama.so"
    other.touch()
    with pytest.raises(ConfigError, match=r"only one llama\.cpp library"):
        binding.choose(other)


CHOSEN = """
import sys
from pathlib import Path
from foredraft.backends.llamacpp import binding
binding.choose(Path(sys.argv[1]))
library = binding.library()
print(library.chosen, library.path, library.name)
binding.lib.llama_backend_init()
"""


def test_a_chosen_library_is_used_and_named(tmp_path: Path) -> None:
    file = tmp_path / "libllama.so"
    file.symlink_to(binding.library().path)
    again = tmp_path / "again.so"
    again.hardlink_to(binding.library().path.resolve()) if _same_disk(tmp_path) else again.symlink_to(file)
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN, str(again)], capture_output=True, text=True, check=True
    )
    chosen, path, *_ = done.stdout.split()
    assert chosen == "True"
    assert Path(path) == again.resolve()
    assert str(again.resolve()) in done.stdout


def _same_disk(folder: Path) -> bool:
    return folder.stat().st_dev == binding.library().path.stat().st_dev
