"""Which llama.cpp library is used, and that one that does not fit is refused with what to install."""

from __future__ import annotations

import _ctypes
import ctypes
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gguf_factory
from foredraft.backends.llamacpp import abi, binding, trial
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.config import ModelOptions
from foredraft.errors import BackendError, ConfigError, MissingDependencyError
from foredraft.installation import add_extra
from foredraft.isolation.pool import ChildPool


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_chosen", [])


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
    monkeypatch.delitem(sys.modules, binding.PACKAGE, raising=False)  # if another test has imported it
    with pytest.raises(BackendError, match="has no library") as caught:
        binding._packaged()
    assert "--force-reinstall" in (caught.value.hint or "")


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "libllama.so"
    file.write_text("no library")
    with pytest.raises(BackendError, match="cannot be loaded"):
        binding._opened(file)


@pytest.mark.parametrize(
    ("library", "what"),
    [
        ("libgomp.so.1", "apt install libgomp1"),
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libcudart.so.13", "CUDA's libraries"),
        ("libcublas.so.13", "CUDA's libraries"),
        ("libvulkan.so.1", "apt install libvulkan1"),
        ("libamdhip64.so.7", "ROCm"),
        ("libggml-base.so.0", "where it looks for them"),
        ("libother.so.1", "the library that it needs"),
    ],
)
def test_what_a_library_needs_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, what: str
) -> None:
    def lacking(_path: Path) -> None:
        raise OSError(f"{library}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(binding, "_Handle", lacking)
    with pytest.raises(BackendError, match=library) as caught:
        binding._opened(tmp_path / "libllama.so")
    assert what in (caught.value.hint or "")
    assert f"xllamacpp=={abi.VERSION}" in (caught.value.hint or "")
    monkeypatch.setattr(binding, "_chosen", [tmp_path / "libllama.so"])
    with pytest.raises(BackendError) as caught:
        binding._opened(tmp_path / "libllama.so")
    assert what in (caught.value.hint or "")
    assert "--llama-library" in (caught.value.hint or "")


@pytest.mark.parametrize("installed", ["2026.10.11548", "2026.11.11700", "0.1"])
def test_another_version_of_the_package(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(binding, "version", lambda _package: installed)
    with pytest.raises(BackendError, match=f"it is that of xllamacpp {installed}") as caught:
        binding._packaged()
    assert f"xllamacpp=={abi.VERSION}" in (caught.value.hint or "")


def test_the_package_for_a_gpu_is_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = binding._packaged()
    monkeypatch.setattr(binding, "version", lambda _package: f"{abi.VERSION}+cu132")
    assert binding._packaged() == expected


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


def check(library: Any, path: Path) -> None:
    binding._check_version(library, path)
    binding._check_functions(library, path)


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
        ({"llama_version": None}, "it has no llama_version"),
        ({"llama_version": Answer(b"0.5.0")}, "its llama.cpp version is 0.5.0"),
        ({"ggml_version": Answer(b"0.9.4")}, "its ggml version is 0.9.4"),
        ({"llama_model_default_params": Answer(model_params(load_mtp=True))}, "another load_mtp"),
    ],
    ids=["lacks a function", "very old", "another llama.cpp", "another ggml", "other structs"],
)
def test_another_llama_cpp_is_refused(functions: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=reason) as caught:
        check(Other(**functions), tmp_path / "libllama.so")
    assert abi.VERSION.rpartition(".")[2] in caught.value.message
    assert f"xllamacpp=={abi.VERSION}" in (caught.value.hint or "")


def test_a_library_that_is_not_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(_ctypes.__file__)
    monkeypatch.setattr(binding, "_chosen", [path])
    with pytest.raises(BackendError, match="it has no llama_version") as caught:
        binding._loaded(path)
    assert "documentation: llama-library" in (caught.value.hint or "")
    assert "leave --llama-library out" in (caught.value.hint or "")


def test_the_same_llama_cpp_is_not_refused(tmp_path: Path) -> None:
    check(Other(), tmp_path / "libllama.so")


def test_functions_of_a_library_s_parts_are_found() -> None:
    """Windows would look for them in the named file only."""
    handle = binding._Handle(Path(_ctypes.__file__))
    assert not hasattr(handle, "ggml_version")
    handle.others.append(binding.library().handle)
    assert handle.ggml_version


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


@pytest.fixture
def unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not used a library yet."""
    monkeypatch.setattr(binding, "_used", [])


@pytest.mark.usefixtures("unused")
def test_two_libraries_cannot_be_chosen(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first.so", tmp_path / "second.so", tmp_path / "link.so"
    first.touch()
    second.touch()
    link.symlink_to(first)
    for path in (first, link, None):
        binding.choose(path)
        assert binding.chosen() == first
    with pytest.raises(ConfigError, match=r"first\.so is in use already") as caught:
        binding.choose(second)
    assert "second.so" in (caught.value.hint or "")
    assert binding.chosen() == first


@pytest.mark.usefixtures("unused")
def test_two_threads_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both, loaded = threading.Barrier(2), list[Path]()

    def slowly(path: Path) -> binding.Library:
        loaded.append(path)
        time.sleep(0.2)
        handle = ctypes.CDLL(_ctypes.__file__)
        return binding.Library(path, handle, False, (), f"{len(loaded)}", "", ())

    def use(_: int) -> binding.Library:
        both.wait()
        return binding.library()

    monkeypatch.setattr(binding, "_loaded", slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(use, range(2))
    assert first is second
    assert len(loaded) == 1


@pytest.mark.usefixtures("unused")
def test_another_can_be_chosen_after_one_that_was_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "libllama.so"
    wrong.write_text("no library")
    binding.choose(wrong)
    with pytest.raises(BackendError, match="cannot be loaded"):
        binding.library()
    binding.choose(Path(_ctypes.__file__))
    with pytest.raises(BackendError, match="it has no llama_version"):
        binding.library()
    assert binding.chosen() is None


def test_the_key_changes_when_a_file_of_the_library_does(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("libllama.so", "libggml-cpu.so")]
    for file in files:
        file.write_text("1")
    before = binding._digest(files)
    assert binding._digest(reversed(files)) == before
    for file in files:
        file.write_text("another")
        after = binding._digest(files)
        assert after != before
        before = after


CHOSEN = """
import sys
from pathlib import Path
from foredraft import Engine
from foredraft.backends.llamacpp import binding
with Engine.load(sys.argv[1], llama_library=sys.argv[2], gpu_layers=0, threads=1, speculate="off") as engine:
    text = engine.generate("Hello", max_tokens=4, temperature=0).text
library = binding.library()
print(library.chosen, library.path)
print(engine.model.info.backend)
"""


@pytest.fixture(scope="module")
def same_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's library at another path."""
    path = tmp_path_factory.mktemp("library") / "libllama.so"
    return Path(shutil.copy(binding.library().path, path))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_a_chosen_library_is_used_and_named(tiny: Path, same_library: Path) -> None:
    """Also by the child process in which a file is opened first."""
    command = [sys.executable, "-c", CHOSEN, str(tiny), str(same_library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    used, backend = done.stdout.splitlines()
    assert used == f"True {same_library}"
    assert backend.startswith(f"llama.cpp {same_library} (")


@pytest.mark.parametrize(
    "arguments",
    [
        *(["models", "inspect"], ["run", "Hello", "-n", "2", "-m"]),
        ["doctor", "-t", "1", "--json"],
    ],
    ids=" ".join,
)
def test_the_flag_comes_before_anything_is_read(arguments: list[str], tiny: Path, tmp_path: Path) -> None:
    """The header of a model is read with the library, too."""
    wrong = tmp_path / "libllama.so"
    wrong.write_text("no library")
    command = [sys.executable, "-m", "foredraft", *arguments, str(tiny), "--llama-library", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert f"The llama.cpp library {wrong} cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_child_in_which_a_file_is_tried_uses_it(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, same_library: Path
) -> None:
    seen: list[object] = []

    class Children(ChildPool):
        def call(self, function: str, *args: object, seconds: float) -> Any:
            seen.extend(args)
            return super().call(function, *args, seconds=seconds)

    monkeypatch.setattr(trial, "start_children", Children)
    monkeypatch.setattr(binding, "chosen", lambda: same_library)
    trial.admit(read_gguf(tiny), ModelOptions(flash_attention="on"))
    assert str(same_library) in seen
