"""From a folder to a model: what is accepted, what is chosen, and what a user is told when it fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import torch_factory
from foredraft import Engine, registry
from foredraft.backends.torch import BACKEND
from foredraft.backends.torch.loading import choose_dtype
from foredraft.config import Dtype, ModelOptions
from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ContextLengthError,
    ForedraftError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from foredraft.installation import add_extra
from foredraft.types import Rollback, Rows
from torch_cases import load

Make = Callable[..., Path]


@pytest.fixture
def own(folder: Make, tmp_path: Path) -> Path:
    """A model that a test may damage."""
    return Path(shutil.copytree(folder(), tmp_path / "own"))


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# --- which files ---------------------------------------------------------------------------------------


def test_a_folder_with_a_configuration_and_safetensors_is_accepted(own: Path, tmp_path: Path) -> None:
    for path in (own, own / "config.json", own / "model.safetensors"):
        assert BACKEND.accepts(path)
        assert registry.backend_for(path).name == "torch"
    for path in (tmp_path, own / "tokenizer.json", own / "model.gguf", tmp_path / "none"):
        assert not BACKEND.accepts(path)


def test_a_gguf_beside_it_is_still_llama_cpps(own: Path) -> None:
    (own / "model.gguf").write_bytes(b"GGUF")
    assert registry.backend_for(own / "model.gguf").name == "llamacpp"


# --- what it says of itself ----------------------------------------------------------------------------


def test_the_model_describes_itself(own: Path) -> None:
    model = load(own, sequences=3, batch=32)
    info, capabilities = model.info, model.capabilities
    source = transformers.AutoModelForCausalLM.from_pretrained(own)
    assert (info.name, info.path, info.architecture) == ("own", str(own), "llama")
    assert info.parameters == source.num_parameters()
    assert info.size_bytes > 4 * info.parameters
    assert (info.trained_context, info.context_length) == (torch_factory.CONTEXT, 256)
    assert (info.device, info.quantization) == ("cpu", "fp32")
    assert transformers.__version__ in info.backend
    assert (capabilities.max_batch, capabilities.sequences) == (32, 3)
    assert capabilities.max_rows <= 32
    assert capabilities.rollback is Rollback.TRUNCATE
    assert capabilities.trees
    assert (capabilities.batch_invariant, capabilities.invariance_note) == (False, "not measured")


def test_a_folder_of_the_hubs_cache_has_the_repositorys_name(own: Path, tmp_path: Path) -> None:
    cached = tmp_path / "models--owner--Tiny-Llama" / "snapshots" / "0123abcd"
    shutil.copytree(own, cached)
    assert load(cached).info.name == "owner/Tiny-Llama"


def test_the_fingerprint_and_the_key_of_snapshots_are_of_the_content(own: Path) -> None:
    first = load(own)
    assert load(own).info.file_hash == first.info.file_hash
    assert load(own).capabilities.snapshot_key == first.capabilities.snapshot_key
    assert load(own, context_length=128).capabilities.snapshot_key != first.capabilities.snapshot_key
    tensors = load_file(own / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    assert load(own).info.file_hash != first.info.file_hash


@pytest.mark.parametrize(
    ("stored", "processor", "chosen"),
    [
        (torch.bfloat16, True, "bf16"),
        (torch.bfloat16, False, "fp32"),
        (torch.float16, True, "fp32"),
        (None, True, "fp32"),
    ],
)
def test_a_processor_computes_in_bf16_where_it_can(
    monkeypatch: pytest.MonkeyPatch, stored: Any, processor: bool, chosen: str
) -> None:
    monkeypatch.setattr("foredraft.backends.torch.loading._processor_has_bf16", lambda: processor)
    assert choose_dtype(SimpleNamespace(dtype=stored), torch.device("cpu")) == chosen


@pytest.mark.parametrize(
    ("stored", "chosen"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")]
)
def test_another_device_computes_in_what_is_stored(stored: str, chosen: str) -> None:
    assert choose_dtype(SimpleNamespace(dtype=getattr(torch, stored)), torch.device("mps")) == chosen


def test_the_context_is_what_the_model_was_trained_for_at_most(own: Path) -> None:
    assert load(own, context_length=0).info.context_length == torch_factory.CONTEXT
    assert load(own, context_length=0, context_at_most=100).info.context_length == 100
    with pytest.raises(ContextLengthError, match="trained for 1024 tokens of context, not 1025"):
        load(own, context_length=torch_factory.CONTEXT + 1)


def test_progress_and_threads_are_the_options(own: Path) -> None:
    seen: list[float] = []
    model = load(own, progress=seen.append)
    assert seen[-1] == 1.0
    assert model.info.settings["threads"] == "1"


# --- what can go wrong ---------------------------------------------------------------------------------


def test_there_is_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        load(tmp_path / "none")


@pytest.mark.parametrize("damage", ["truncated", "empty", "noise"])
def test_damaged_weights_are_an_error_in_words(own: Path, damage: str) -> None:
    file = own / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes({"truncated": content[:-1000], "empty": b"", "noise": b"\xff" * 4096}[damage])
    with pytest.raises(ModelFormatError) as caught:
        load(own)
    assert "own" in caught.value.message
    assert caught.value.hint


def test_missing_tensors_are_not_replaced_by_noise(own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelFormatError, match=r"lacks 1 of the model's tensors, for example model\.layers\.1\.mlp\.up_proj"
    ):
        load(own)


@pytest.mark.parametrize(
    ("changes", "tensor"),
    [({"vocab_size": 400}, "embed_tokens"), ({"intermediate_size": 32}, r"layers\.0\.mlp\.down_proj")],
    ids=["vocabulary", "layer"],
)
def test_a_tensor_of_another_shape_is_named(own: Path, changes: dict[str, int], tensor: str) -> None:
    change_config(own, **changes)
    with pytest.raises(ModelFormatError, match=rf"{tensor}\.weight has the shape \(\d+, \d+\), but"):
        load(own)


@pytest.fixture
def parts(own: Path, tmp_path: Path) -> Path:
    """The same model in several files."""
    transformers.AutoModelForCausalLM.from_pretrained(own).save_pretrained(
        tmp_path / "parts", max_shard_size="100KB"
    )
    torch_factory.make_tokenizer().save_pretrained(tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", r"incomplete: there is no file .*model-00002-of-\d+\.safetensors"),
        ("truncated", "is truncated"),
        ("empty", "is not a safetensors file"),
        ("mixed up", r"lacks \d+ of the model's tensors"),
    ],
)
def test_so_is_what_is_wrong_with_a_part(parts: Path, damage: str, message: str) -> None:
    load(parts).close()
    first, second = sorted(parts.glob("model-*.safetensors"))[:2]
    if damage == "missing":
        second.unlink()
    else:
        content = {"truncated": second.read_bytes()[:-500], "empty": b"", "mixed up": first.read_bytes()}
        second.write_bytes(content[damage])
    with pytest.raises(ModelFormatError, match=message) as caught:
        load(parts)
    assert caught.value.hint


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_so_is_an_index_of_nothing(parts: Path, index: str) -> None:
    (parts / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFormatError, match=r"index\.json"):
        load(parts)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 1_000_000_000},
        {"vocab_size": 2**40},
        {"intermediate_size": 2**40},
        {"num_key_value_heads": 2**30},
    ],
)
def test_a_configuration_of_more_than_the_files_hold_takes_no_memory(
    own: Path, changes: dict[str, int]
) -> None:
    change_config(own, **changes)
    with pytest.raises(ModelError, match="The configuration of"):
        load(own)


def test_a_fault_of_a_library_in_rust_is_an_error_in_words(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", panic)
    with pytest.raises(ModelFormatError, match="called `Option::unwrap"):
        load(own)


def test_without_a_tokenizer_the_error_says_so(own: Path) -> None:
    (own / "tokenizer.json").unlink()
    with pytest.raises(ModelFormatError, match="cannot read a tokenizer in own") as caught:
        load(own)
    assert "tokenizer.json" in str(caught.value.hint)


def test_a_number_format_that_nobody_has(own: Path) -> None:
    with pytest.raises(ConfigError, match="no number format 'fp64'") as caught:
        load(own, cast("Dtype", "fp64"))
    assert "bf16" in str(caught.value.hint)
    change_config(own, dtype="float17")
    with pytest.raises(ModelError, match="float17"):
        load(own)


def test_what_gives_no_next_token_is_unsupported(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.LlamaForCausalLM, "get_output_embeddings", lambda _: None)
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM has no output layer"):
        load(own)


def test_what_needs_more_than_a_text_is_unsupported(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: object, pixels: object, **__: object) -> None:
        """Of a model that wants pictures."""

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", forward)
    with pytest.raises(UnsupportedModelError, match="cannot compute plain text with GPT2LMHeadModel"):
        load(folder("gpt2"))


def test_an_unknown_architecture_is_unsupported(own: Path) -> None:
    change_config(own, model_type="martian", architectures=["MartianForCausalLM"])
    with pytest.raises(UnsupportedModelError, match="martian"):
        load(own)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_file_that_is_no_json_is_an_error_in_words(own: Path, file: str) -> None:
    (own / file).write_text("{")
    with pytest.raises(ModelError) as caught:
        load(own)
    assert "own" in caught.value.message


def test_too_large_a_cache_is_a_lack_of_room(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nand much more")

    monkeypatch.setattr("foredraft.backends.torch.kv.torch.zeros", no_memory)
    with pytest.raises(CapacityError, match="KV cache of 1 × 256 tokens"):
        load(own)


def test_a_closed_model_says_so(own: Path) -> None:
    model = load(own)
    model.close()
    with pytest.raises(BackendError, match="closed"):
        model.forward([Rows(0, 0, (1,), 1)])


WITHOUT_TORCH = """
import sys
sys.modules[sys.argv[2]] = None
from foredraft import Engine, ForedraftError
try:
    Engine.load(sys.argv[1], remember=False)
except ForedraftError as error:
    print(error)
"""


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_without_the_extra_the_error_has_the_line_that_installs_it(own: Path, module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(own / "config.json"), module],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == (
        f"Loading {own.name} needs the Python package '{module}', which is not installed.\n"
        f"Install it with: {add_extra('torch')}\n"
    )


def test_everything_else_works_without_torch() -> None:
    code = "import sys; import foredraft, foredraft.cli, foredraft.server; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_an_engine_reports_a_failure_as_one_of_its_errors(own: Path, tmp_path: Path) -> None:
    (own / "model.safetensors").write_bytes(b"")
    with pytest.raises(ForedraftError):
        Engine.load(own / "config.json", cache_dir=tmp_path, remember=False)


def test_options_are_those_of_any_backend(own: Path) -> None:
    model = BACKEND.load(own, ModelOptions(threads=1, gpu_layers=0, probe=False))
    assert model.info.context_length == torch_factory.CONTEXT
    model.close()
