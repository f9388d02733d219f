"""Where the RPC library is compiled to, and found: in the package, or in the cache folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from foredraft.backends.llamacpp.native import build, rpc_build
from foredraft.backends.llamacpp.rpc.library import library
from foredraft.cli.rpc import build as command
from foredraft.errors import BackendError
from rpc_process import needs_library

CURRENT = f"compiled from {rpc_build.sources_hash()}".encode()


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A folder that cannot be made, nor written to, as in a read-only image; not even by root."""
    (tmp_path / "image").write_bytes(b"")
    return tmp_path / "image" / "lib"


def test_a_package_that_can_be_written_to_has_the_library(tmp_path: Path) -> None:
    package, cache = tmp_path / "package", tmp_path / "cache"
    assert rpc_build.place(cache, package) == package / rpc_build.FILE
    assert list(package.iterdir()) == []


def test_beside_a_package_that_cannot_be_written_to_it_is_in_the_cache(tmp_path: Path, locked: Path) -> None:
    cache = tmp_path / "cache"
    place = rpc_build.place(cache, locked)
    assert cache in place.parents
    assert rpc_build.sources_hash() in place.parts
    assert rpc_build.find(cache, locked) is None
    place.parent.mkdir(parents=True)
    place.write_bytes(b"of other sources")
    assert rpc_build.find(cache, locked) is None
    place.write_bytes(CURRENT)
    assert rpc_build.find(cache, locked) == place
    assert rpc_build.find(None, locked) is None


def test_a_stale_library_in_the_package_does_not_hide_that_of_the_cache(tmp_path: Path) -> None:
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    (package / rpc_build.FILE).write_bytes(b"of other sources")
    with pytest.raises(BackendError, match="for another version"):
        library(cache, package)
    kept = rpc_build.places(cache, package)[1]
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CURRENT)
    assert rpc_build.find(cache, package) == kept
    (package / rpc_build.FILE).write_bytes(CURRENT)
    assert rpc_build.find(cache, package) == package / rpc_build.FILE


def test_a_library_that_is_nowhere_or_broken_is_said(tmp_path: Path, locked: Path) -> None:
    with pytest.raises(BackendError, match="not compiled here") as error:
        library(tmp_path / "cache", locked)
    assert "foredraft rpc-build" in (error.value.hint or "")
    place = rpc_build.place(tmp_path / "cache", locked)
    place.parent.mkdir(parents=True)
    place.write_bytes(CURRENT)
    with pytest.raises(BackendError, match="cannot be loaded"):
        library(tmp_path / "cache", locked)


@needs_library
def test_the_library_in_the_cache_is_loaded(tmp_path: Path, locked: Path) -> None:
    place = rpc_build.place(tmp_path / "cache", locked)
    place.parent.mkdir(parents=True)
    shutil.copy(build.FOLDER / rpc_build.FILE, place)
    assert library(tmp_path / "cache", locked).version == library(None).version


def test_the_command_compiles_to_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("FOREDRAFT_CACHE", str(cache))
    monkeypatch.setattr(rpc_build, "find", lambda _: None)
    monkeypatch.setattr(rpc_build, "_is_writable", lambda _: False)
    compiled: list[Path] = []

    def compile_library(_: Path, to: Path) -> Path:
        compiled.append(to)
        return to

    monkeypatch.setattr(rpc_build, "compile_library", compile_library)
    done = CliRunner().invoke(command, ["--sdist", "sources.tar.gz"])
    assert done.exit_code == 0, done.output
    assert compiled == [rpc_build.places(cache)[1]]
    assert str(compiled[0]) in done.output
