"""Stored profiles: what is saved is what is loaded, and nothing on the disk can stop a run."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import stat
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from foredraft.cpu_info import Processor, this_processor
from foredraft.engine import profile_store as module
from foredraft.engine.profile_store import Profile, ProfileKey, ProfileStore, erase, files, key_of
from foredraft.testing import FakeModel

KEY = ProfileKey(
    model="abc",
    backend="llama.cpp (llama-cpp-python 0.3.36)",
    device="cpu",
    threads="2",
    kv_type="bf16/f16",
)
PROFILE = Profile(
    key=KEY,
    name="SmolLM2 135M",
    # V(8) < V(7): a curve with steps, which must come back as it was.
    curve={64: {1: 7.0, 2: 11.2, 7: 24.9, 8: 20.0}, 512: {1: 7.4, 2: 12.0}},
    measured_at=datetime(2026, 11, 21, 10, 30, 5, 1234, tzinfo=UTC),
    snapshot_ms=3.0,
    restore_ms=None,
    resize=0.1,
    rounds=12,
    learnt={"suffix": {"counts": [[1, 2.5], [3, 4]]}},
)


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles")


def path_of(store: ProfileStore) -> Path:
    store.save(PROFILE)
    (path,) = files(store.folder)
    return path


# --- saving and loading --------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.load(KEY) is None
    assert store.save(PROFILE)
    assert store.load(KEY) == PROFILE
    assert ProfileStore(store.folder).load(KEY) == PROFILE
    assert caplog.records == []


def test_the_newest_is_kept(store: ProfileStore) -> None:
    store.save(PROFILE)
    newer = replace(PROFILE, curve={64: {1: 5.0, 2: 6.0}}, rounds=99)
    store.save(newer)
    assert store.load(KEY) == newer
    assert len(files(store.folder)) == 1


@pytest.mark.parametrize("field", [field.name for field in fields(ProfileKey)])
def test_each_part_of_the_key_counts(store: ProfileStore, field: str) -> None:
    store.save(PROFILE)
    assert store.load(replace(KEY, **{field: "other"})) is None
    assert store.load(KEY) == PROFILE


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_only_the_user_can_read_it(store: ProfileStore) -> None:
    assert stat.S_IMODE(path_of(store).stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_all_profiles_by_name(store: ProfileStore) -> None:
    assert store.all() == []
    other = replace(PROFILE, name="A first one", key=replace(KEY, model="def"))
    store.save(PROFILE)
    store.save(other)
    assert store.all() == [other, PROFILE]


# --- the key -------------------------------------------------------------------------------------------


def test_the_key_of_a_model() -> None:
    settings = {"threads": "2", "kv_type": "bf16/f16", "batch": "512/512", "memory": "mmap"}
    info = replace(FakeModel().info, settings=settings, file_hash="abc")
    here = this_processor()._asdict()
    expected = ProfileKey(
        "abc", "fake", "cpu", "2", "bf16/f16", processor=here["name"], instructions=here["instructions"]
    )
    assert key_of(info) == expected


@pytest.mark.parametrize(("batch", "ubatch"), [("512/512", ""), ("512/64", ""), ("512/16", "16"), ("", "")])
def test_only_a_ubatch_that_splits_drafts_counts(batch: str, ubatch: str) -> None:
    info = replace(FakeModel().info, settings={"batch": batch})
    assert key_of(info).ubatch == ubatch


# --- files that are no use -----------------------------------------------------------------------------


def corrupted(text: str, path: str, value: Any) -> str:
    """The stored JSON with one value replaced; `path` as in "curve/64/1"."""
    data = json.loads(text)
    *parents, last = path.split("/")
    place = data
    for name in parents:
        place = place[name]
    place[last] = value
    return json.dumps(data)


BAD_VALUES = [
    ("curve", {}),
    ("curve", []),
    ("curve", {"64": {}}),
    ("curve", {"64": {"2": 1.0}}),  # no plain forward to compare with
    ("curve", {"64": {"1": 1.0, "two": 1.0}}),
    ("curve", {"64": {"1": 1.0, "0": 1.0}}),
    ("curve", {"64": {"1": 1.0, "-3": 1.0}}),
    ("curve", {"-1": {"1": 1.0}}),
    ("curve", {"deep": {"1": 1.0}}),
    ("curve/64/1", 0),
    ("curve/64/1", -1.0),
    ("curve/64/1", True),
    ("curve/64/1", "7"),
    ("curve/64/1", None),
    ("curve/64/1", math.nan),
    ("curve/64/1", math.inf),
    ("curve/64/1", 1e300),
    ("curve/64/1", 10**400),
    ("snapshot_ms", [1.0]),
    ("resize", -0.1),
    ("snapshot_ms", "fast"),
    ("rounds", -1),
    ("rounds", 1.5),
    ("rounds", True),
    ("learnt", []),
    ("learnt", {"x": math.nan}),
    ("measured_at", "yesterday"),
    ("measured_at", 5),
    ("measured_at", "2026-11-21T10:30:00"),  # of which time zone?
    ("name", 7),
    ("version", 99),
    ("version", None),
    ("format", "something-else"),
    ("key/model", "another"),
    ("key/threads", 2),
    ("key", "abc"),
]


@pytest.mark.parametrize(("path", "value"), BAD_VALUES, ids=[f"{p}={v!r:.20}" for p, v in BAD_VALUES])
def test_a_value_that_makes_no_sense(
    store: ProfileStore, path: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    file = path_of(store)
    file.write_text(corrupted(file.read_text(), path, value))
    assert_ignored_and_replaced(store, file, caplog)


@pytest.mark.parametrize("missing", ["format", "version", "key", "curve", "measured_at"])
def test_a_field_that_is_missing(store: ProfileStore, missing: str, caplog: pytest.LogCaptureFixture) -> None:
    file = path_of(store)
    data = json.loads(file.read_text())
    del data[missing]
    file.write_text(json.dumps(data))
    assert_ignored_and_replaced(store, file, caplog)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"curve": ' + b"9" * 10_000 + b"}",
        b"GGUF" * 100,
    ],
    ids=["empty", "truncated", "null", "list", "not text", "deep", "long number", "other format"],
)
def test_a_file_that_is_not_a_profile(
    store: ProfileStore, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = path_of(store)
    file.write_bytes(content)
    assert_ignored_and_replaced(store, file, caplog)


def test_a_file_cut_anywhere(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    whole = path_of(store).read_bytes()
    (file,) = files(store.folder)
    for end in range(0, len(whole.rstrip()), 37):
        file.write_bytes(whole[:end])
        assert store.load(KEY) is None
    assert all("Ignoring the stored profile" in record.message for record in caplog.records)


def test_a_file_that_is_far_too_large(
    store: ProfileStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = path_of(store)
    monkeypatch.setattr(module, "LARGEST_FILE", 100)
    assert store.load(KEY) is None
    assert "bytes" in caplog.text
    monkeypatch.undo()
    assert store.load(KEY) == PROFILE
    assert file.exists()


def test_another_version_says_so(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    file = path_of(store)
    file.write_text(corrupted(file.read_text(), "version", 99))
    assert store.load(KEY) is None
    assert "version 99" in caplog.text
    assert str(file) in caplog.text


def test_a_profile_of_another_machine_is_not_taken_for_ones_own(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory was copied; the model, the backend and the number of threads are the same."""
    info = replace(FakeModel().info, file_hash="abc")
    store.save(replace(PROFILE, key=key_of(info)))
    assert store.load(key_of(info)) is not None
    for other in (Processor("Other 9", "avx2"), this_processor()._replace(instructions="avx2 avx512f")):
        monkeypatch.setattr(module, "this_processor", lambda other=other: other)
        assert store.load(key_of(info)) is None
    assert len(store.all()) == 1, "it is kept: the home directory may be shared"


def test_version_1_knew_no_processor(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    """Its file has another name, and is ignored with a message until there is a new one."""
    known = replace(KEY, processor="Fast 3000", instructions="avx2")
    identity = json.dumps([KEY.model, KEY.backend, KEY.device, KEY.threads, KEY.kv_type, "", ""])
    store.folder.mkdir()
    old = store.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
    old.write_text(json.dumps({"format": "foredraft-profile", "version": 1}))
    assert store.load(known) is None
    (record,) = caplog.records
    assert str(old) in record.getMessage()
    assert "on which processor" in record.getMessage()
    caplog.clear()
    store.save(replace(PROFILE, key=known))
    assert not old.exists()
    assert store.load(known) == replace(PROFILE, key=known)
    assert caplog.records == []


def test_another_models_file_says_so(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    file = path_of(store)
    other = replace(KEY, model="another")
    store.save(replace(PROFILE, key=other))
    (foreign,) = set(files(store.folder)) - {file}
    foreign.replace(file)
    assert store.load(KEY) is None
    assert "another model or setting" in caplog.text


def assert_ignored_and_replaced(store: ProfileStore, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    assert store.load(KEY) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name == "foredraft.engine.profile_store"
    assert "Ignoring the stored profile" in record.message
    assert str(file) in record.message
    store.save(PROFILE)
    caplog.clear()
    assert store.load(KEY) == PROFILE
    assert caplog.records == []


# --- a disk that does not do as it should --------------------------------------------------------------


def test_a_folder_in_the_files_place(store: ProfileStore, caplog: pytest.LogCaptureFixture) -> None:
    file = path_of(store)
    file.unlink()
    file.mkdir()
    assert store.load(KEY) is None
    store.save(PROFILE)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_files_place_does_not_hang(store: ProfileStore) -> None:
    file = path_of(store)
    file.unlink()
    os.mkfifo(file)
    assert store.load(KEY) is None
    store.save(PROFILE)
    assert store.load(KEY) == PROFILE


def test_a_file_in_the_folders_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "profiles").write_text("not a folder")
    store = ProfileStore(tmp_path / "profiles")
    store.save(PROFILE)
    assert "cannot be saved" in caplog.text
    assert store.load(KEY) is None
    assert store.all() == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Denied")])
def test_a_save_that_fails_is_a_warning(
    store: ProfileStore, error: OSError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(PROFILE)

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, "write_atomically", refuse)
    assert not store.save(replace(PROFILE, rounds=99))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(error.strerror) in record.message
    assert store.load(KEY) == PROFILE


@pytest.mark.parametrize(
    "bad",
    [
        {"learnt": {"x": object()}},
        {"learnt": {"x": math.nan}},
        {"curve": {64: {1: math.inf}}},
        {"curve": {64: {1: 0.0, 2: 1.0}}},
        {"curve": {64: {2: 1.0}}},
        {"measured_at": datetime(2026, 11, 21)},
    ],
    ids=["object", "nan in learnt", "endless forward", "instant forward", "no plain forward", "no time zone"],
)
def test_what_cannot_be_stored_is_a_warning(
    store: ProfileStore, bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store.save(PROFILE)
    store.save(replace(PROFILE, **bad))
    assert "cannot be saved" in caplog.text
    assert store.load(KEY) == PROFILE


def test_a_crash_while_writing_keeps_the_old_one(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(PROFILE)

    def crash(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            store.save(replace(PROFILE, rounds=99))
    assert store.load(KEY) == PROFILE


# --- erasing -------------------------------------------------------------------------------------------


def test_erasing_takes_profiles_and_leftovers_only(store: ProfileStore) -> None:
    file = path_of(store)
    leftover = file.with_name(f".{file.name}.k3j4h5")
    leftover.write_bytes(b"half")
    for name in ("notes.txt", "mine.json", ".hidden"):
        (store.folder / name).write_text("kept")
    assert sorted(files(store.folder)) == sorted([file, leftover])
    erase(store.folder)
    assert {path.name for path in store.folder.iterdir()} == {"notes.txt", "mine.json", ".hidden"}
    erase(store.folder)


def test_erasing_what_is_not_there(tmp_path: Path) -> None:
    assert files(tmp_path / "nothing") == []
    erase(tmp_path / "nothing")


# --- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "nearest"), [(0, 64), (64, 64), (287, 64), (289, 512), (9000, 512)])
def test_the_curve_for_a_depth(depth: int, nearest: int) -> None:
    assert PROFILE.nearest_depth(depth) == nearest
