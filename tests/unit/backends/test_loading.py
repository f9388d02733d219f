"""Loading a GGUF: what is chosen, what is refused and in which words, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest

import gguf_factory
import gguf_parts
import gguf_tokenizer
from foredraft.backends import cpu
from foredraft.backends.llamacpp import BACKEND, abi, kernels, loading
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.kv_types import KV_TYPES
from foredraft.config import ModelOptions
from foredraft.cpu_info import Processor
from foredraft.engine.profile_store import key_of
from foredraft.errors import (
    BackendError,
    ConfigError,
    ContextLengthError,
    ForedraftError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from foredraft.library.fingerprint import fingerprint
from foredraft.protocols import Model
from foredraft.types import Rows

TRAINED = 512


def load(path: Path, **options: Any) -> Model:
    return BACKEND.load(path, ModelOptions(**{"threads": 1, "probe": False, "gpu_layers": 0, **options}))


def described(path: Path, **options: Any) -> tuple[dict[str, str], str]:
    """(the settings, the device) of a model that is closed again."""
    model = load(path, **options)
    model.close()
    return dict(model.info.settings), model.info.device


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", ctx_train=TRAINED)


# --- files that cannot be used -------------------------------------------------------------------------


def tiny_bert(path: Path) -> Path:
    """An embedding model: llama.cpp loads it, and computes, but there is nothing to generate with."""
    width, vocab, context = 32, 300, 128
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("Tiny BERT")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    gguf_tokenizer.add_tokenizer(writer, vocab, None)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, width),
        "token_types.weight": (2, width),
        "position_embd.weight": (context, width),
    }
    layer: dict[str, tuple[int, ...]] = {
        "ffn_up": (2 * width, width),
        "ffn_down": (width, 2 * width),
        **{f"attn_{name}": (width, width) for name in ("q", "k", "v", "output")},
        **dict.fromkeys(("attn_output_norm", "layer_output_norm"), (width,)),
    }
    for prefix, members in (("", {"token_embd_norm": (width,)}), ("blk.0.", layer)):
        for name, lengths in members.items():
            shapes |= {f"{prefix}{name}.weight": lengths, f"{prefix}{name}.bias": lengths[:1]}
    for name, lengths in shapes.items():
        writer.add_tensor(name, np.ones(lengths, dtype=np.float32))
    gguf_parts.write(writer)
    return path


def missing(path: Path, _tiny: Path) -> None:
    """Nothing is made."""


def folder(path: Path, _tiny: Path) -> None:
    path.mkdir()


def html(path: Path, _tiny: Path) -> None:
    gguf_factory.not_gguf(path)


def empty(path: Path, _tiny: Path) -> None:
    path.touch()


def zipped(path: Path, _tiny: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(100))


def magic_only(path: Path, _tiny: Path) -> None:
    path.write_bytes(b"GGUF")


def cut_in_the_header(path: Path, tiny: Path) -> None:
    gguf_factory.truncated(tiny, path, keep=0.01)


def cut_in_the_weights(path: Path, tiny: Path) -> None:
    gguf_factory.truncated(tiny, path, keep=0.8)


def vocabulary(path: Path, _tiny: Path) -> None:
    gguf_factory.vocab_only(path)


def unknown(path: Path, _tiny: Path) -> None:
    gguf_factory.unknown_architecture(path)


def embedding(path: Path, _tiny: Path) -> None:
    tiny_bert(path)


def newer_version(path: Path, tiny: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[4] = 99
    path.write_bytes(data)


Maker = Callable[[Path, Path], None]
BAD_FILES: list[tuple[Maker, type[ForedraftError], str, str]] = [
    (missing, ModelNotFoundError, "no file", "models list"),
    (folder, ModelFormatError, "not a file", "GGUF file"),
    (html, ModelFormatError, "not a GGUF file", "to GGUF"),
    (empty, ModelFormatError, "not a GGUF file (it is empty)", "to GGUF"),
    (zipped, ModelFormatError, "not a GGUF file (it starts with 'PK", "to GGUF"),
    (magic_only, ModelFormatError, "header is damaged", "repeat it"),
    (cut_in_the_header, ModelFormatError, "header is damaged", "repeat it"),
    (cut_in_the_weights, ModelFormatError, "truncated", "incomplete"),
    (vocabulary, ModelFormatError, "only a vocabulary", "full model file"),
    (unknown, UnsupportedModelError, "'nonesuch'", "pip install --upgrade"),
    (embedding, UnsupportedModelError, "embedding model", "/v1/embeddings"),
    (newer_version, ModelFormatError, "version 99", "repeat it"),
]


@pytest.mark.parametrize(("make", "error", "cause", "hint"), BAD_FILES)
def test_a_bad_file_is_named_with_the_cause_and_what_to_do(
    make: Maker, error: type[ForedraftError], cause: str, hint: str, tmp_path: Path, tiny: Path
) -> None:
    path = tmp_path / "bad model.gguf"
    make(path, tiny)
    with pytest.raises(error) as caught:
        load(path)
    assert type(caught.value) is error
    assert path.name in caught.value.message
    assert cause in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2
    assert not re.search(r"\bb['\"]", str(caught.value)), "bytes as Python writes them"


def test_a_file_that_may_not_be_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelNotFoundError, match=r"Cannot read .*tiny\.gguf: Permission denied") as caught:
        load(tiny)
    assert caught.value.hint == "Check the file's permissions."


def test_a_split_model_without_one_of_its_files(tmp_path: Path) -> None:
    first = gguf_factory.tiny_llama(tmp_path / "split.gguf", split_tensors=8)
    load(first).close()
    (tmp_path / "split-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFoundError, match=r"split-00002-of-00003\.gguf is missing") as caught:
        load(first)
    assert "Download the missing file" in (caught.value.hint or "")


def test_an_encoder_decoder_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "llama_model_has_encoder", lambda _weights: True)
    with pytest.raises(UnsupportedModelError, match="encoder"):
        load(tiny)


@pytest.mark.parametrize("attached", [True, False])
def test_weights_of_the_processor_lie_where_the_kernels_find_them(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, attached: bool
) -> None:
    given = list[Any]()

    def refused(_path: bytes, params: Any) -> None:
        given.append(params)

    monkeypatch.setattr(kernels, "in_use", lambda: object() if attached else None)
    monkeypatch.setattr(lib, "llama_model_load_from_file", refused)
    for as_they_lie in (False, True):
        with pytest.raises(ModelFormatError):
            loading.load_weights(tiny, ModelOptions(), as_they_lie=as_they_lie)
    assert [params.no_host for params in given] == [attached, False]
    assert [params.use_extra_bufts for params in given] == [True, False]


@pytest.mark.parametrize(("device", "offloads"), [("cpu", False), ("CUDA0 NVIDIA H100", True)])
def test_no_gpu_computes_for_a_model_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, device: str, offloads: bool
) -> None:
    given = list[Any]()

    def refused(_weights: object, params: Any) -> None:
        given.append(params)

    monkeypatch.setattr(lib, "llama_init_from_model", refused)
    settings = loading.ContextSettings(64, 1, 1, 64, 64, ("bf16", "f16"), "auto", device)
    with pytest.raises(BackendError):
        loading.create_context(None, settings, fallback=False)
    assert given[0].op_offload == offloads


def test_the_key_of_measurements_has_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loading.ContextSettings(64, 1, 1, 64, 64, ("bf16", "f16"), "auto", "cpu")
    here = settings.key()
    assert settings.key() == here
    monkeypatch.setattr(loading, "this_processor", lambda: Processor("Another", "avx2"))
    assert settings.key() != here


@pytest.mark.parametrize("name", ["ünï cödé 模型.gguf", os.fsdecode(b"caf\xe9.gguf")])
def test_any_file_name_will_do(name: str, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(tiny.read_bytes())
    load(path).close()


# --- options that cannot be used -----------------------------------------------------------------------


def test_a_context_over_the_trained_one(tiny: Path) -> None:
    load(tiny, context_length=TRAINED).close()
    with pytest.raises(ContextLengthError) as caught:
        load(tiny, context_length=TRAINED + 1)
    assert {"tiny.gguf", "512", "513."} <= set(caught.value.message.split())
    assert "at most 512" in (caught.value.hint or "")


@pytest.mark.parametrize("kv_type", ["q9", "f16/q9", "q9/f16", "F16 ", ""])
def test_an_unknown_kv_type(tiny: Path, kv_type: str) -> None:
    with pytest.raises(ConfigError, match="no KV cache type") as caught:
        load(tiny, kv_type=kv_type)
    assert "bf16, q8_0" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kv_type", "flash", "cause"),
    [("q8_0", "auto", "block size 32"), ("f16/q8_0", "off", "quantized V cache")],
)
def test_a_kv_type_that_does_not_fit_the_model(tiny: Path, kv_type: str, flash: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause) as caught:
        load(tiny, kv_type=kv_type, flash_attention=flash)
    assert "auto" in (caught.value.hint or "")


def test_too_little_memory_for_the_context_is_a_capacity_error(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "long.gguf", ctx_train=1 << 24)
    program = f"""
import resource
from pathlib import Path
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.errors import CapacityError
options = dict(threads=1, probe=False, gpu_layers=0)
BACKEND.load(Path({str(path)!r}), ModelOptions(context_length=256, **options)).close()
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    BACKEND.load(Path({str(path)!r}), ModelOptions(context_length=1 << 24, **options))
except CapacityError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "not enough memory for a context of 16777216 tokens" in done.stdout
    assert "smaller context" in done.stdout


# --- what is chosen ------------------------------------------------------------------------------------


def test_settings_say_what_was_chosen(tiny: Path) -> None:
    settings, device = described(tiny, sequences=3, batch=64, ubatch=128, memory="ram", kv_type="f16")
    assert settings == {
        "kv_type": "f16/f16",
        "threads": "1",
        "memory": "ram",
        "sequences": "3",
        "batch": "64/64",
    }
    assert device == "cpu"


def test_a_batch_has_room_for_every_sequence(tiny: Path) -> None:
    assert described(tiny, batch=1, ubatch=1, sequences=4)[0]["batch"] == "4/4"
    assert described(tiny, batch=16, ubatch=2, sequences=4)[0]["batch"] == "16/4"


@pytest.mark.parametrize("memory", ["mmap", "ram"])
def test_the_weights_are_the_same_mapped_or_read(tiny: Path, memory: str) -> None:
    model, other = load(tiny, memory=memory), load(tiny)
    rows = [Rows(0, 0, [5, 6, 7], 1)]
    assert np.array_equal(model.forward(rows), other.forward(rows))
    assert model.info.settings["memory"] == memory
    model.close()
    other.close()


@pytest.mark.parametrize(
    ("flags", "own_kernels", "types"),
    [
        ("avx2", False, "bf16/f16"),
        ("avx2 avx512_fp16", False, "bf16/bf16"),
        ("avx2 avx512_fp16", True, "bf16/f16"),
    ],
)
def test_kv_types_are_exact_ones_on_a_processor(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, flags: str, own_kernels: bool, types: str
) -> None:
    if own_kernels:
        load(tiny).close()  # attaches them
        if kernels.in_use() is None:
            pytest.skip(kernels.left_out())
    monkeypatch.setattr(loading, "first_processor", lambda: {"flags": flags})
    monkeypatch.setattr(kernels, "in_use", lambda: kernels._state.kernels if own_kernels else None)
    assert described(tiny)[0]["kv_type"] == types
    assert described(tiny, flash_attention="off")[0]["kv_type"] == "f16/f16"


def as_gpu(monkeypatch: pytest.MonkeyPatch, description: bytes) -> None:
    """Let this library's processor be a GPU."""
    monkeypatch.setattr(lib, "ggml_backend_dev_type", lambda _device: abi.GGML_BACKEND_DEVICE_TYPE_GPU)
    monkeypatch.setattr(lib, "ggml_backend_dev_description", lambda _device: description)


def test_kv_types_on_a_gpu_are_those_every_kernel_has(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_gpu(monkeypatch, b"NVIDIA H100")
    settings, device = described(tiny)
    assert (settings["kv_type"], settings["gpu_layers"]) == ("f16/f16", "0")
    assert device == "CPU NVIDIA H100"


def test_costs_and_cells_of_one_gpu_are_not_those_of_another(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> tuple[Any, Any]:
        model = load(tiny, kv_type="f16")
        model.close()
        return key_of(model.info), model.capabilities.snapshot_key

    as_gpu(monkeypatch, b"NVIDIA H100")
    first = keys()
    as_gpu(monkeypatch, b"NVIDIA L4")
    second = keys()
    assert first[0] != second[0]
    assert first[1] != second[1]


def refuse_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let llama.cpp be one without kernels for K in bf16."""
    create = lib.llama_init_from_model

    def picky(weights: Any, params: Any) -> Any:
        return create(weights, params) if params.type_k != KV_TYPES["bf16"] else None

    monkeypatch.setattr(lib, "llama_init_from_model", picky)


def test_kv_type_auto_falls_back_where_the_exact_pair_is_not_to_be_had(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_bf16(monkeypatch)
    assert described(tiny)[0]["kv_type"] == "f16/f16"


def test_a_kv_type_that_was_asked_for_is_not_replaced(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_bf16(monkeypatch)
    with pytest.raises(ForedraftError, match="cannot create a context") as caught:
        load(tiny, kv_type="bf16/f16")
    assert caught.value.hint


def test_flash_attention_is_off_when_it_was_turned_off(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    create = lib.llama_init_from_model

    def watching(weights: Any, params: Any) -> Any:
        seen.append(params.flash_attn_type)
        return create(weights, params)

    monkeypatch.setattr(lib, "llama_init_from_model", watching)
    for flash in ("auto", "on", "off"):
        load(tiny, flash_attention=flash, kv_type="bf16/f16").close()
    assert seen == [1, 1, 0]


def test_the_fingerprint_is_of_the_content(tiny: Path, tmp_path: Path) -> None:
    original = fingerprint([tiny])
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    assert fingerprint([copy]) == original
    data = bytearray(tiny.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    assert fingerprint([copy]) != original
    copy.write_bytes(tiny.read_bytes() + b"\0")
    assert fingerprint([copy]) != original


def test_models_of_one_vocabulary_share_its_hash(tiny: Path, tmp_path: Path) -> None:
    sister = gguf_factory.tiny_llama(tmp_path / "sister.gguf", seed=1, layers=1)
    stranger = gguf_factory.tiny_llama(tmp_path / "stranger.gguf", vocab=300)
    hashes = []
    for path in (tiny, sister, stranger):
        model = load(path)
        hashes.append((model.info.vocab_hash, model.info.file_hash))
        model.close()
    assert hashes[0][0] == hashes[1][0] != hashes[2][0]
    assert len({file for _, file in hashes}) == 3


def test_progress_runs_to_the_end(tiny: Path) -> None:
    seen: list[float] = []
    load(tiny, progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_progress_raises_stops_the_loading(
    tiny: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp calls from native code, through which no exception passes."""
    seen: list[float] = []
    loaded: list[object] = []
    native = lib.llama_model_load_from_file

    def stop(fraction: float) -> None:
        seen.append(fraction)
        raise error

    def watched(path: bytes, params: Any) -> Any:
        loaded.append(native(path, params))
        return loaded[-1]

    monkeypatch.setattr(lib, "llama_model_load_from_file", watched)
    with pytest.raises(error):
        load(tiny, progress=stop)
    assert len(seen) == 1
    assert seen[0] < 1.0
    assert loaded == [None], "llama.cpp itself has stopped"
    load(tiny).close()


# --- threads -------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str | None], set[int]], None]:
    """Pretend a topology: for each processor its `thread_siblings_list` or None, and the allowed ones."""

    def pretend(siblings: list[str | None], allowed: set[int]) -> None:
        for number, text in enumerate(siblings):
            folder = tmp_path / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            if text is not None:
                (folder / "thread_siblings_list").write_text(f"{text}\n")
        monkeypatch.setattr(cpu, "_TOPOLOGY", tmp_path)
        monkeypatch.setattr(cpu, "cpu_quota", lambda: None)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed, raising=False)

    return pretend


@pytest.mark.parametrize(
    ("siblings", "allowed", "cores"),
    [
        (["0-1", "0-1", "2-3", "2-3"], {0, 1, 2, 3}, 2),
        (["0,2", "1,3", "0,2", "1,3"], {0, 1, 2, 3}, 2),
        (["0-1", "0-1", "2-3", "2-3"], {0, 1}, 1),
        (["0-1", "0-1", "2-3", "2-3"], {1, 2}, 2),
        (["0", "1", "2"], {0, 1, 2}, 3),
        ([None, None], {0, 1}, 2),
    ],
)
def test_physical_cores_count_hyper_threads_once(
    machine: Callable[[list[str | None], set[int]], None],
    siblings: list[str | None],
    allowed: set[int],
    cores: int,
) -> None:
    machine(siblings, allowed)
    assert cpu.physical_cores.__wrapped__() == cores


def test_without_affinity_every_processor_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cpu, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cpu.physical_cores.__wrapped__() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpu.physical_cores.__wrapped__() == 1


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (8.0, 4), (4.0, 4), (2.5, 2), (1.0, 1), (0.5, 1)])
def test_no_more_cores_than_a_quota_keeps_busy(
    machine: Callable[[list[str | None], set[int]], None],
    monkeypatch: pytest.MonkeyPatch,
    quota: float | None,
    cores: int,
) -> None:
    machine(["0", "1", "2", "3"], {0, 1, 2, 3})
    monkeypatch.setattr(cpu, "cpu_quota", lambda: quota)
    assert cpu.physical_cores.__wrapped__() == cores


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "250000 100000"}, 2.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1.0),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000"}, 2.0),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "50000"},
            3.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/a\n", {}, None),
        (None, {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_quota_of_control_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    membership: str | None,
    files: dict[str, str],
    quota: float | None,
) -> None:
    groups = tmp_path / "groups"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{text}\n")
    if membership is not None:
        (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr(cpu, "_GROUPS", groups)
    monkeypatch.setattr(cpu, "_MEMBERSHIP", tmp_path / "membership")
    assert cpu.cpu_quota() == quota


def test_threads_are_the_physical_cores_unless_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "physical_cores", lambda: 3)
    assert described(tiny, threads=0)[0]["threads"] == "3"
    assert described(tiny, threads=2)[0]["threads"] == "2"


# --- nothing leaks -------------------------------------------------------------------------------------

SLACK = 6 << 20
"""What the allocator may keep; a model that leaked each time would be 45 × 2.5 MB."""


def test_loading_and_failing_fifty_times_keeps_no_memory(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", embd=128, layers=3, ctx_train=TRAINED)
    assert path.stat().st_size > 1_500_000
    bert = tiny_bert(tmp_path / "bert.gguf")

    def once() -> None:
        model = load(path, memory="ram", sequences=2)
        model.forward([Rows(0, 0, [5, 6, 7], 3)])
        model.close()
        for bad, options in (
            (path, {"context_length": TRAINED + 1, "memory": "ram"}),
            (path, {"kv_type": "q9"}),
            (path, {"kv_type": "f16/q8_0", "flash_attention": "off", "memory": "ram"}),
            (bert, {"memory": "ram"}),
        ):
            with pytest.raises(ForedraftError):
                load(bad, **options)

    def resident() -> int:
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    for _ in range(5):
        once()
    warm = resident()
    for _ in range(45):
        once()
    assert resident() - warm < SLACK
