"""Files that llama.cpp would end the process with are refused in words. `nightly` has the whole list."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gguf_factory
from command_line import Command
from foredraft.backends.llamacpp import trial
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.config import ModelOptions
from foredraft.engine.engine import Engine
from foredraft.errors import (
    BackendError,
    ChildDiedError,
    ChildError,
    ChildMemoryError,
    ChildTimeoutError,
    ForedraftError,
    ModelFormatError,
)
from foredraft.isolation.pool import ChildPool
from foredraft.server.pool import ModelPool
from foredraft.server.run import loader
from foredraft.server.settings import ModelSettings, ServerSettings
from gguf_loads import LOADED
from gguf_mutations import Mutation, mutations

IN_THE_HEADER = {
    **{
        f"llama.block_count = {n} as UINT32": "whole number from 1 to 512"
        for n in (0, 513, 65_537, 2**31 - 1)
    },
    **{
        f"llama.attention.layer_norm_rms_epsilon = {n} as FLOAT32": "not a number from 0 to 1"
        for n in ("nan", "inf", "-1.0")
    },
    **{f"llama.expert_count = {n} as UINT32": "has no weights of experts" for n in (1, 2, 63, 512)},
    **{f"llama.expert_count = {n} as UINT32": "whole number from 0 to 1,024" for n in (65_537, 2**32 - 1)},
    "llama.expert_count = [2, 2] as ARRAY": "whole number from 0 to 1,024",
    "llama.expert_used_count = 2 as UINT32": "is 0",
    **{
        f"llama.nextn_predict_layers = {n} as UINT32": "whole number below 2, which is llama.block_count"
        for n in (2, 3, 2**32 - 1)
    },
    **{f"general.alignment = {n} as UINT32": "no multiple of 32 bytes" for n in (1, 2)},
    "general.alignment = 8 as UINT8": "must be of type u32",
    "general.alignment = 8 as FLOAT32": "must be of type u32",
    "general.alignment = 0 as UINT32": "not a power of 2",
    "llama.rope.scaling.type = 'dynamic' as STRING": "not one of none, linear, yarn, longrope",
    "llama.rope.scaling.type = '' as STRING": "not one of none, linear, yarn, longrope",
    "llama.context_length = 0 as UINT32": "whole number from 1",
}
"""The name of each mutation, and words of the error: found without llama.cpp."""

IN_A_CHILD = {
    "tokenizer.ggml.model = 'llama' as STRING": r"llama.cpp ends the process with it \(.*at",
    "tokenizer.ggml.model = 'none' as STRING": r"\(llama-vocab\.cpp:\d+: GGML_ASSERT\(.*TYPE_NONE\) failed\)",
    "tokenizer.ggml.model = 'no_vocab' as STRING": r"GGML_ASSERT\(.*TYPE_NONE\) failed",
    "tokens of numbers for llama": r"ends the process",
    "llama.expert_group_count = 2 as UINT32": r"GGML_ASSERT\(hparams.n_expert_groups == 0\) failed",
    "all tokens the same": r"GGML_ASSERT\(id_to_token.size\(\) == token_to_id.size\(\)\) failed",
}
"""Found by opening the file."""

ANYHOW = (
    "tokens that begin with b'\\xff'",
    "tokens that begin with b'\\xf0\\x9f'",
    "tokens that begin with b'\\x00'",
    "merges of one word",
    "merges that are no UTF-8",
    "a short map of characters",
    "long tokens",
    "llama.attention.head_count = 0 as UINT32",
    "llama.attention.head_count_kv = 3 as UINT32",
    "llama.rope.dimension_count = 4294967295 as UINT32",
    "general.architecture = 'bert' as STRING",
    "tokenizer.ggml.bos_token_id = 4294967295 as UINT32",
)
"""They may load or not."""


COMMANDS = (
    ("run", "-m", "FILE", "x"),
    ("doctor", "FILE"),
    ("serve", "FILE", "--port", 0),
    ("models", "quantize", "FILE", "q8_0"),
)


@pytest.fixture(scope="module")
def known() -> dict[str, Mutation]:
    return {mutation.name: mutation for mutation in mutations()}


@pytest.fixture(scope="module")
def children() -> Iterator[ChildPool]:
    """Where files are loaded: a crash fails a test, and not the run."""
    with ChildPool(size=1) as children:
        yield children


@pytest.mark.parametrize("name", IN_THE_HEADER)
def test_what_the_header_shows_is_refused_by_its_key(
    name: str, known: dict[str, Mutation], tmp_path: Path
) -> None:
    path = known[name].write(tmp_path / "m.gguf")
    with pytest.raises(ModelFormatError) as caught:
        read_gguf(path)
    assert IN_THE_HEADER[name] in caught.value.message
    assert name.split(" ", maxsplit=1)[0] in caught.value.message or "alignment 0" in caught.value.message


@pytest.mark.parametrize("name", IN_A_CHILD)
def test_what_ends_llama_cpp_ends_a_child(
    name: str, known: dict[str, Mutation], children: ChildPool, tmp_path: Path
) -> None:
    path = known[name].write(tmp_path / "m.gguf")
    result = children.call("gguf_loads:load", str(path), seconds=300)
    assert result.startswith("2: ")
    assert re.search(IN_A_CHILD[name], result), result


@pytest.mark.parametrize("name", ANYHOW)
def test_the_rest_loads_or_is_refused(
    name: str, known: dict[str, Mutation], children: ChildPool, tmp_path: Path
) -> None:
    path = known[name].write(tmp_path / "m.gguf")
    result = children.call("gguf_loads:load", str(path), seconds=300)
    assert result == LOADED or result.startswith("2: "), result


def test_the_command_says_so_and_exits_with_2(
    known: dict[str, Mutation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(capsys)
    for name, words in (
        ("llama.block_count = 0 as UINT32", "from 1 to 512"),
        ("all tokens the same", "GGML_ASSERT"),
    ):
        path = known[name].write(tmp_path / "m.gguf")
        for arguments in COMMANDS:
            ran = command(*(path if word == "FILE" else word for word in arguments))
            assert ran.code == 2, (name, arguments)
            assert words in ran.err


def test_a_draft_model_that_ends_llama_cpp_is_a_note(known: dict[str, Mutation], tmp_path: Path) -> None:
    target = gguf_factory.tiny_llama(tmp_path / "target.gguf")
    draft = known["all tokens the same"].write(tmp_path / "draft.gguf")
    with Engine.load(target, speculate=f"draft-model:model={draft}", threads=1, probe=False) as engine:
        assert any("GGML_ASSERT" in note for note in engine.notes)


# --- what is kept --------------------------------------------------------------------------------------


def tried(monkeypatch: pytest.MonkeyPatch, outcome: Exception | None = None) -> list[str]:
    """The files that are opened in a child from now on, which ends so."""
    files: list[str] = []

    class Children:
        def __enter__(self) -> Children:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, _function: str, path: str, *_: object, seconds: float) -> None:
            files.append(path)
            if outcome is not None:
                raise outcome

    monkeypatch.setattr(trial, "start_children", Children)
    return files


def forget() -> None:
    """As another process begins."""
    trial._known.clear()


def test_a_file_is_tried_once_for_its_size_time_and_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tried(monkeypatch)
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf")
    options = ModelOptions(cache_dir=tmp_path / "cache")
    for _ in range(2):
        trial.admit(read_gguf(path), options)
        forget()
        trial.admit(read_gguf(path), options)
    assert len(files) == 1
    os.utime(path, ns=(1, 1))
    trial.admit(read_gguf(path), options)
    assert len(files) == 2
    gguf_factory.tiny_llama(path, name="Other Name")
    os.utime(path, ns=(1, 1))
    trial.admit(read_gguf(path), options)
    assert len(files) == 3


def test_what_ended_a_child_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tried(monkeypatch, ChildDiedError("Its process ended: signal 11, SIGSEGV."))
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf")
    for _ in range(2):
        forget()
        with pytest.raises(ModelFormatError, match=r"ends the process with it \(signal 11, SIGSEGV\)"):
            trial.admit(read_gguf(path), ModelOptions(cache_dir=tmp_path / "cache"))
    assert len(files) == 1


def killed() -> ChildDiedError:
    error = ChildDiedError("Its process ended: signal 9.")
    error.transient = True
    return error


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (
            ChildTimeoutError("It takes longer than 60 s."),
            ModelFormatError,
            "its trial in a child process failed. It takes",
        ),
        (ChildMemoryError("More."), ModelFormatError, "its trial in a child process failed. More"),
        (killed(), BackendError, "ended: signal 9"),
        (ChildError("A child process could not be started: full"), BackendError, "started: full"),
    ],
)
def test_what_the_machine_may_have_done_is_not_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: ChildError,
    raised: type[ForedraftError],
    message: str,
) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf")
    options = ModelOptions(cache_dir=tmp_path / "cache")
    tried(monkeypatch, error)
    with pytest.raises(raised, match=message):
        trial.admit(read_gguf(path), options)
    files = tried(monkeypatch)
    trial.admit(read_gguf(path), options)
    assert len(files) == 1


def test_an_unreadable_result_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tried(monkeypatch)
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf")
    options = ModelOptions(cache_dir=tmp_path / "cache")
    trial.admit(read_gguf(path), options)
    [kept] = (tmp_path / "cache" / "probes").iterdir()
    assert json.loads(kept.read_text()) == {"fault": ""}
    for damage in ("", "[]", "{}"):
        kept.write_text(damage)
        forget()
        trial.admit(read_gguf(path), options)
    assert len(files) == 4


def test_a_server_refuses_a_file_that_ends_llama_cpp_and_goes_on(
    known: dict[str, Mutation], tmp_path: Path
) -> None:
    good = gguf_factory.tiny_llama(tmp_path / "good.gguf")
    bad = known["all tokens the same"].write(tmp_path / "bad.gguf")
    settings = ServerSettings(
        models={
            name: ModelSettings(path=str(path), threads=1, speculate="off", context_length=256)
            for name, path in (("good", good), ("bad", bad))
        },
        cache_dir=tmp_path / "cache",
    )

    async def asked() -> None:
        pool = ModelPool(settings, loader(settings))
        try:
            served = await pool.get("good")
            with pytest.raises(ModelFormatError, match="GGML_ASSERT"):
                await pool.get("bad")
            assert served.worker.alive
            assert list(pool.loaded) == ["good"]
        finally:
            await pool.close()

    asyncio.run(asked())
