"""Heads on torch: EAGLE-3 in both forms and layers for multi-token prediction, against plain references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import torch_heads
from foredraft.backends.torch import BACKEND
from foredraft.backends.torch.eagle3 import Sizes, _rotary
from foredraft.backends.torch.head_files import read_eagle3
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.offload_cpu import CpuDevice
from foredraft.config import ModelOptions
from foredraft.errors import BackendError, OutOfKVError
from foredraft.protocols import Head, Model
from foredraft.types import HeadRows, Logits, Rows
from model_cases import text_tokens
from torch_cases import load, reference
from torch_heads import HIDDEN, LAYERS, MTP, eagle3_tensors, write_specforge, write_speculators

Make = Callable[..., Path]
WATCH = tuple(f"layer:{layer}" for layer in LAYERS)
TEXT, OTHER = text_tokens(20), text_tokens(11, seed=1)
DRAFT = [40, 77, 120, 55]
KNOWN = [5, 20, 21, 40, 41, 60, 90, 120, 200, 299]


@pytest.fixture
def target(folder: Make) -> Path:
    return folder("llama", num_hidden_layers=4, tie_word_embeddings=False)


def with_head(target: Path, head: Path | None, **options: Any) -> tuple[Model, Head]:
    watch = BACKEND.features_for(target, head)
    model = load(target, "fp32", **{"watch": watch, "sequences": 3, **options})
    return model, model.load_head(head, sequences=3)


def pairs(model: Model, tokens: Sequence[int], seq: int = 0) -> tuple[list[int], Any]:
    """The tokens and features of a head's rows, from that of token 1 on, after a forward of `tokens`."""
    model.release(seq)
    model.forward([Rows(seq, 0, tokens, 0)])
    return list(tokens[1:]), model.features()[: len(tokens) - 1].copy()


def chain(head: Head, seq: int, start: int, tokens: Sequence[int]) -> Logits:
    """Rows that go on from the head's own states, one by one; the logits of each."""
    rows = [
        head.forward([HeadRows(seq, start + i, [token], None, 1)])[0].copy() for i, token in enumerate(tokens)
    ]
    return np.stack(rows)


def near(found: Any, wanted: Any) -> bool:
    """Equal but for rounding, and -inf in the same places."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    finite = np.isfinite(wanted)
    return (
        found.shape == wanted.shape
        and np.array_equal(np.isfinite(found), finite)
        and np.allclose(found[finite], wanted[finite], rtol=1e-3, atol=1e-3 * np.abs(wanted[finite]).max())
    )


# --- EAGLE-3, against a plain reference ----------------------------------------------------------------


class PlainEagle3:
    """The head's paper written down: every row over all rows, no cells."""

    def __init__(self, folder: Path, target: Path, layers: int = 4) -> None:
        self.file = read_eagle3(folder, layers=layers)
        stored = load_file(folder / "model.safetensors")
        self.w = {name: stored[theirs] for name, theirs in self.file.stored.items()}
        trunk = load_file(target / "model.safetensors")
        self.sizes = Sizes.of(self.file, HIDDEN)
        self.rotary = _rotary(self.file, self.sizes, torch.device("cpu"))
        self.embedding = self.w.get("embed_tokens.weight", trunk["model.embed_tokens.weight"])
        self.output = self.w.get("lm_head.weight", trunk["lm_head.weight"])

    def norm(self, rows: Any, name: str) -> Any:
        return torch.nn.functional.rms_norm(rows, rows.shape[-1:], self.w[name], 1e-5)

    def product(self, rows: Any, name: str) -> Any:
        return torch.nn.functional.linear(rows, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def fuse(self, features: Any) -> Any:
        rows = torch.from_numpy(features)
        return self.product(self.norm(rows, "input_norm.weight") if self.file.normed_features else rows, "fc")

    def __call__(self, tokens: Sequence[int], hidden: Any, start: int) -> tuple[Any, Any]:
        """States and logits of all rows; `hidden` of each row's parent."""
        sizes, layer = self.sizes, "midlayer.self_attn"
        normed = self.norm(hidden, "midlayer.hidden_norm.weight")
        embedded = self.norm(self.embedding[list(tokens)], "midlayer.input_layernorm.weight")
        both = torch.cat([embedded, normed], -1)
        count = len(tokens)
        q, k, v = (self.product(both, f"{layer}.{part}_proj").view(count, -1, sizes.head) for part in "qkv")
        positions = torch.arange(start, start + count)
        cos, sin = self.rotary(both[None], positions[None])
        q, k = (
            part[0] for part in apply_rotary_pos_emb(*(x.transpose(0, 1)[None] for x in (q, k)), cos, sin)
        )
        v = v.transpose(0, 1)
        k, v = (part.repeat_interleave(sizes.heads // sizes.groups, 0) for part in (k, v))
        scores = q @ k.transpose(1, 2) * sizes.head**-0.5
        sees = torch.ones(count, count).tril().bool()
        if self.file.window:
            sees &= torch.ones(count, count).triu(1 - self.file.window).bool()
        mixed = torch.softmax(scores.masked_fill(~sees, float("-inf")), -1) @ v
        rows = normed if self.file.normed_residual else hidden
        rows = rows + self.product(mixed.transpose(0, 1).flatten(1), f"{layer}.o_proj")
        inner = self.norm(rows, "midlayer.post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(self.product(inner, "midlayer.mlp.gate_proj"))
        rows = rows + self.product(
            gate * self.product(inner, "midlayer.mlp.up_proj"), "midlayer.mlp.down_proj"
        )
        return rows, self.in_vocabulary(self.norm(rows, "norm.weight") @ self.output.T)

    def in_vocabulary(self, logits: Any) -> Any:
        if "d2t" not in self.w:
            return logits
        whole = torch.full((len(logits), 300), float("-inf"))
        whole[:, self.w["d2t"] + torch.arange(len(self.w["d2t"]))] = logits
        return whole

    def drafted(self, features: Any, tokens: Sequence[int], start: int, draft: Sequence[int]) -> Any:
        """The logits after the last row with features, and after each token of a draft."""
        hidden, text = self.fuse(features), list(tokens)
        states, logits = self(text, hidden, start)
        found = [logits[-1]]
        for token in draft:
            hidden, text = torch.cat([hidden, states[-1:]]), [*text, token]
            states, logits = self(text, hidden, start)
            found.append(logits[-1])
        return torch.stack(found).numpy()


def random_norm(seed: int, size: int) -> Any:
    return 1 + 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def biased(tensors: dict[str, Any]) -> dict[str, Any]:
    names = [f"midlayer.self_attn.{part}_proj" for part in "qo"]
    biases = {f"{name}.bias": 0.2 * random_norm(1, len(tensors[f"{name}.weight"])) for name in names}
    return tensors | biases | {"fc.bias": 0.2 * random_norm(2, HIDDEN)}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, Callable[[Path], Path]] = {
    "specforge": lambda path: write_specforge(path, eagle3_tensors()),
    "specforge, known": lambda path: write_specforge(path, eagle3_tensors(known=KNOWN)),
    "specforge, own": lambda path: write_specforge(path, eagle3_tensors(own_embedding=True)),
    "specforge, the target's output": lambda path: write_specforge(path, eagle3_tensors(own_output=False)),
    "specforge, biases": lambda path: write_specforge(path, biased(eagle3_tensors())),
    "specforge, rope": lambda path: write_specforge(path, eagle3_tensors(), rope_scaling=LLAMA3),
    "specforge, window 1": lambda path: write_specforge(path, eagle3_tensors(), foredraft_window=1),
    "specforge, window 3": lambda path: write_specforge(path, eagle3_tensors(), foredraft_window=3),
    "speculators": lambda path: write_speculators(path, eagle3_tensors(known=KNOWN)),
    "speculators, residual": lambda path: write_speculators(
        path, eagle3_tensors(known=KNOWN), norm_before_residual=True
    ),
    "speculators, features": lambda path: write_speculators(
        path,
        eagle3_tensors() | {"input_norm.weight": random_norm(3, 3 * HIDDEN)},
        norm_before_fc=True,
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_eagle3_head_computes_what_its_paper_says(target: Path, tmp_path: Path, variant: str) -> None:
    path = VARIANTS[variant](tmp_path / "head")
    model, head = with_head(target, path)
    assert head.needs == WATCH == model.capabilities.features
    tokens, features = pairs(model, TEXT)
    plain = PlainEagle3(path, target)
    first = head.forward([HeadRows(0, 1, tokens, features, 1)]).copy()
    found = np.concatenate([first, chain(head, 0, len(TEXT), DRAFT)])
    assert near(found, plain.drafted(features, tokens, 1, DRAFT))


@pytest.mark.parametrize("variant", ["specforge", "specforge, window 1", "specforge, window 3"])
def test_rows_may_come_in_parts_and_begin_anywhere(target: Path, tmp_path: Path, variant: str) -> None:
    """After a prefix that came from a cache, and over more than the cells that there are at first."""
    path = VARIANTS[variant](tmp_path / "head")
    model, head = with_head(target, path, context_length=512)
    text = text_tokens(400)
    tokens, features = pairs(model, text)
    for first, end in ((50, 60), (60, 61), (61, 390), (390, 399)):
        rows = HeadRows(
            1, first + 1, tokens[first:end], features[first:end], end - first if end == 399 else 0
        )
        found = head.forward([rows]).copy()
    assert head.length(1) == 400
    plain = PlainEagle3(path, target)
    _, logits = plain(tokens[50:], plain.fuse(features[50:]), 51)
    assert near(found, logits[-9:].numpy())


def test_all_kinds_of_rows_share_a_forward(target: Path, tmp_path: Path) -> None:
    """As if each sequence were alone: one gets a prompt, one a row of the target's, one goes on by itself."""
    model, head = with_head(target, VARIANTS["specforge, known"](tmp_path / "head"))
    texts = [TEXT, OTHER, TEXT[5:14]]
    rows = [pairs(model, text) for text in texts]
    alone = []
    for tokens, features in rows:
        alone.append(head.forward([HeadRows(0, 1, tokens, features, 1)]).copy())
        alone.append(chain(head, 0, len(tokens) + 1, DRAFT[:1]))
        head.release(0)
    (a, fa), (b, fb), (c, fc) = rows
    head.forward([HeadRows(2, 1, c, fc, 1), HeadRows(0, 1, a[:-1], fa[:-1], 0)])
    mixed = [
        HeadRows(1, 1, b, fb, 1),
        HeadRows(2, len(c) + 1, DRAFT[:1], None, 1),
        HeadRows(0, len(a), a[-1:], fa[-1:], 1),
    ]
    assert near(head.forward(mixed), np.concatenate([alone[2], alone[5], alone[0]]))


@pytest.mark.parametrize("variant", ["specforge", "specforge, window 1", "specforge, window 3"])
def test_a_tree_is_its_chains(target: Path, tmp_path: Path, variant: str) -> None:
    """Two roots, their children in the next forward, and a grandchild in the one after."""
    model, head = with_head(target, VARIANTS[variant](tmp_path / "head"))
    tokens, features = pairs(model, TEXT)
    end = len(TEXT)

    def fresh(draft: Sequence[int]) -> Any:
        head.release(1)
        head.forward([HeadRows(1, 1, tokens, features, 1)])
        return chain(head, 1, end, draft)[-1]

    head.forward([HeadRows(0, 1, tokens, features, 1)])
    first = head.forward([HeadRows(0, end, [40, 41], None, 2, (-1, -1))]).copy()
    second = head.forward([HeadRows(0, end, [50, 51, 52, 53], None, 4, (0, 0, 1, -1))]).copy()
    third = head.forward([HeadRows(0, end + 2, [60], None, 1, (4,))]).copy()
    assert head.length(0) == end + 3
    chains = [[40], [41], [40, 50], [40, 51], [41, 52], [53], [41, 52, 60]]
    expected = [fresh(draft) for draft in chains]
    assert near(np.concatenate([first, second, third]), np.stack(expected))


def test_rows_of_the_target_replace_a_tree(target: Path, tmp_path: Path) -> None:
    model, head = with_head(target, VARIANTS["specforge"](tmp_path / "head"))
    tokens, features = pairs(model, TEXT)
    expected = head.forward([HeadRows(0, 1, tokens, features, 1)]).copy()
    head.forward([HeadRows(1, 1, tokens[:-2], features[:-2], 1)])
    chain(head, 1, len(TEXT) - 2, DRAFT)
    assert head.length(1) == len(TEXT) - 2 + len(DRAFT)
    found = head.forward([HeadRows(1, len(TEXT) - 2, tokens[-2:], features[-2:], 1)])
    assert near(found, expected)
    assert head.length(1) == len(TEXT)


def test_what_is_cut_off_leaves_no_trace(target: Path, tmp_path: Path) -> None:
    model, head = with_head(target, VARIANTS["specforge"](tmp_path / "head"))
    tokens, features = pairs(model, TEXT)
    expected = head.forward([HeadRows(0, 1, tokens, features, 1)]).copy()
    other, theirs = pairs(model, [*TEXT[:9], *OTHER])
    head.forward([HeadRows(1, 1, other, theirs, 1)])
    chain(head, 1, len(other) + 1, DRAFT)
    head.truncate(1, 9)
    assert head.length(1) == 9
    assert near(head.forward([HeadRows(1, 9, tokens[8:], features[8:], 1)]), expected)
    head.truncate(1, 100)
    assert head.length(1) == len(TEXT)
    head.truncate(1, 1)
    assert head.length(1) == 0
    head.release(0)
    assert head.length(0) == 0


def test_a_head_reads_only_its_own_of_what_is_watched(target: Path, tmp_path: Path) -> None:
    path = VARIANTS["specforge"](tmp_path / "head")
    model, head = with_head(target, path)
    tokens, features = pairs(model, TEXT)
    expected = head.forward([HeadRows(0, 1, tokens, features, 1)]).copy()
    model, head = with_head(target, path, watch=("next", "layer:3", "layer:1", "layer:0", "layer:2"))
    tokens, features = pairs(model, TEXT)
    assert head.needs == WATCH
    parts = dict(zip(model.capabilities.features, np.split(features, 5, 1), strict=True))
    mine = np.concatenate([parts[name] for name in head.needs], 1)
    assert near(head.forward([HeadRows(0, 1, tokens, mine, 1)]), expected)


def test_a_head_leaves_its_target_as_it_is(target: Path, tmp_path: Path) -> None:
    model, head = with_head(target, VARIANTS["specforge"](tmp_path / "head"))
    tokens, features = pairs(model, TEXT)
    before = model.snapshot(0)
    head.forward([HeadRows(0, 1, tokens, features, 1)])
    chain(head, 0, len(TEXT), DRAFT)
    assert model.snapshot(0) == before
    assert np.array_equal(model.features()[:-1], features)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("variant", ["specforge, known", "specforge, window 1"])
def test_a_head_computes_in_its_targets_format(
    target: Path, tmp_path: Path, variant: str, dtype: Any
) -> None:
    """And with layers that are streamed from memory."""
    path = VARIANTS[variant](tmp_path / "head")
    options = ModelOptions(
        threads=1, gpu_layers=2, probe=False, context_length=256, sequences=3, watch=WATCH, dtype=dtype
    )
    model = load_model(target, options, CpuDevice(10**9))
    assert "streamed" in model.info.settings
    head = model.load_head(path, sequences=3)
    tokens, features = pairs(model, TEXT)
    first = head.forward([HeadRows(0, 1, tokens, features, 1)]).copy()
    found = np.concatenate([first, chain(head, 0, len(TEXT), DRAFT)])
    expected = PlainEagle3(path, target).drafted(features, tokens, 1, DRAFT)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    apart = np.abs(found[finite] - expected[finite]).max() / np.abs(expected[finite]).max()
    assert apart < {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}[dtype]


# --- what a head refuses -------------------------------------------------------------------------------


@pytest.fixture
def ready(target: Path, tmp_path: Path) -> tuple[Head, list[int], Any]:
    """A head with some rows in sequence 0, and the rows."""
    model, head = with_head(target, VARIANTS["specforge"](tmp_path / "head"), context_length=32)
    tokens, features = pairs(model, TEXT)
    head.forward([HeadRows(0, 1, tokens[:10], features[:10], 1)])
    return head, tokens, features


def wrong_rows(tokens: list[int], features: Any) -> dict[str, HeadRows]:
    one, row = tokens[10:11], features[10:11]
    return {
        "has no sequence 3": HeadRows(3, 1, one, row, 1),
        "has no sequence -1": HeadRows(-1, 1, one, row, 1),
        "start at 13; the head's end at 11": HeadRows(0, 13, one, row, 1),
        "starts at position 1": HeadRows(1, 0, one, row, 1),
        "2 of 1 rows": HeadRows(0, 11, one, row, 2),
        "0 of 0 rows": HeadRows(0, 11, [], features[:0], 0),
        "not in the vocabulary": HeadRows(0, 11, [300], row, 1),
        r"Features of shape \(1, 192\)": HeadRows(0, 11, one, features[10:11, :64], 1),
        "are a chain": HeadRows(0, 11, one, row, 1, (-1,)),
        "no hidden state": HeadRows(1, 11, one, None, 1),
        "start at 12, their parents before 11": HeadRows(0, 12, one, None, 1),
        "not among the 0 rows": HeadRows(0, 11, [40, 41], None, 1, (-1, 0)),
        "Each row has a parent": HeadRows(0, 11, [40, 41], None, 1),
    }


@pytest.mark.parametrize("words", wrong_rows(TEXT, np.zeros((20, 192), np.float32)))
def test_rows_that_cannot_be_are_refused(ready: tuple[Head, list[int], Any], words: str) -> None:
    head, tokens, features = ready
    with pytest.raises(BackendError, match=words):
        head.forward([wrong_rows(tokens, features)[words]])
    assert [head.length(seq) for seq in range(3)] == [11, 0, 0]
    chain(head, 0, 11, DRAFT)


def test_a_sequence_comes_once(ready: tuple[Head, list[int], Any]) -> None:
    head, tokens, features = ready
    rows = HeadRows(0, 11, tokens[10:11], features[10:11], 1)
    with pytest.raises(BackendError, match="twice"):
        head.forward([rows, rows])


def test_a_head_goes_on_only_from_a_row_that_returned_logits(ready: tuple[Head, list[int], Any]) -> None:
    head, tokens, features = ready
    head.forward([HeadRows(0, 11, tokens[10:12], features[10:12], 0)])
    with pytest.raises(BackendError, match="no hidden state"):
        chain(head, 0, 13, DRAFT)
    head.forward([HeadRows(0, 13, tokens[12:13], features[12:13], 1)])
    chain(head, 0, 14, DRAFT)
    head.truncate(0, 14)
    with pytest.raises(BackendError, match="no hidden state"):
        chain(head, 0, 14, DRAFT)


def test_the_context_is_the_targets(ready: tuple[Head, list[int], Any]) -> None:
    head, tokens, features = ready
    head.forward([HeadRows(0, 11, tokens[10:], features[10:], 1)])
    chain(head, 0, 20, [40] * 12)
    with pytest.raises(OutOfKVError, match="after the head's context of 32 tokens"):
        chain(head, 0, 32, [40])
    assert head.length(0) == 32


def test_nothing_costs_nothing(ready: tuple[Head, list[int], Any]) -> None:
    head, tokens, features = ready
    assert head.forward([]).shape == (0, 300)
    assert head.forward([HeadRows(0, 11, tokens[10:12], features[10:12], 0)]).shape == (0, 300)


def test_a_closed_head_says_so(ready: tuple[Head, list[int], Any]) -> None:
    head, tokens, features = ready
    head.close()
    head.close()
    with pytest.raises(BackendError, match="is closed"):
        head.forward([HeadRows(0, 11, tokens[10:11], features[10:11], 1)])


def test_half_precision_from_a_drafters_memory_will_do(ready: tuple[Head, list[int], Any]) -> None:
    head, tokens, features = ready
    halves = features[10:11].astype(np.float16)
    halves.flags.writeable = False
    assert head.forward([HeadRows(0, 11, tokens[10:11], halves, 1)]).shape == (1, 300)


# --- layers for multi-token prediction -----------------------------------------------------------------


@pytest.fixture(scope="session")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("mtp")

    def make(family: str, **options: Any) -> Path:
        path = root / f"{family}-{len(options)}"
        return path if path.exists() else torch_heads.make_mtp(path, family, **options)

    return make


class PlainMtp:
    """transformers' own layer class over whole texts, with its own attention and a mask."""

    def __init__(self, deeper: Path, family: str) -> None:
        self.family = family
        self.model = reference(deeper, "eager")
        self.base = self.model.get_decoder()
        self.parts = torch_heads.around(family, self.base.norm.weight.detach())
        self.window = self.model.config.sliding_window if family == "mimo_v2_flash" else 0

    def norm(self, rows: Any, name: str) -> Any:
        weight = self.parts[name] + float(self.family.startswith("qwen"))
        return torch.nn.functional.rms_norm(rows, rows.shape[-1:], weight, self.model.config.rms_norm_eps)

    def __call__(self, tokens: Sequence[int], hidden: Any, start: int) -> tuple[Any, Any]:
        embedded = self.norm(self.base.embed_tokens(torch.tensor(list(tokens))), "enorm")
        rows = torch.cat([embedded, self.norm(hidden, "hnorm")], -1) @ self.parts["join"].T
        positions = torch.arange(start, start + len(tokens))
        hides = torch.ones(len(tokens), len(tokens)).triu(1).bool()
        if self.window:
            hides |= torch.ones(len(tokens), len(tokens)).tril(-self.window).bool()
        kind = ("sliding_attention",) if self.window else ()
        made = self.base.layers[-1](
            rows[None],
            position_embeddings=self.base.rotary_emb(rows[None], positions[None], *kind),
            attention_mask=torch.zeros(hides.shape).masked_fill(hides, float("-inf"))[None, None],
            position_ids=positions[None],
            cache=None,
        )[0]
        normed = self.norm(made, "norm")
        return (made if self.family == "mimo_v2_flash" else normed), self.model.lm_head(normed)

    def drafted(self, features: Any, tokens: Sequence[int], start: int, draft: Sequence[int]) -> Any:
        hidden, text, found = torch.from_numpy(features), list(tokens), []
        with torch.inference_mode():
            for token in [*draft, None]:
                states, logits = self(text, hidden, start)
                found.append(logits[-1])
                if token is not None:
                    hidden, text = torch.cat([hidden, states[-1:]]), [*text, token]
        return torch.stack(found).numpy()


@pytest.mark.parametrize("family", MTP)
def test_a_models_own_layer_computes_what_transformers_does(
    mtp: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    path = mtp(family)
    assert BACKEND.features_for(path, None) == ("next",)
    model, head = with_head(path, None)
    tokens, features = pairs(model, TEXT)
    first = head.forward([HeadRows(0, 5, tokens[4:], features[4:], 1)]).copy()
    found = np.concatenate([first, chain(head, 0, len(TEXT), DRAFT)])
    plain = PlainMtp(torch_heads.make_deeper(tmp_path / "deeper", family), family)
    assert near(found, plain.drafted(features[4:], tokens[4:], 5, DRAFT))


@pytest.mark.parametrize("family", MTP)
def test_a_layer_that_knows_the_next_token_is_always_right(mtp: Callable[..., Path], family: str) -> None:
    model, head = with_head(mtp(family, knowing=True), None)
    assert drafted(model, head, TEXT, 6) == continued(model, TEXT, 7)[1:]


@pytest.mark.parametrize("known", [None, "half"])
def test_a_head_that_knows_the_next_token_is_always_right(tmp_path: Path, known: str | None) -> None:
    target = torch_heads.make_forgetful(tmp_path / "target")
    model = load(target, "fp32", sequences=3)
    says = continued(model, TEXT, 12)
    tokens = None if known is None else sorted({*says, *range(0, 300, 7)})
    model, head = with_head(target, torch_heads.write_knowing(tmp_path / "head", target, known=tokens))
    assert head.window == 1
    assert drafted(model, head, TEXT, 11) == says[1:]


def continued(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """The model's own next tokens."""
    model.release(0)
    text = list(prompt)
    row = model.forward([Rows(0, 0, text, 1)])[0]
    for _ in range(count):
        text.append(int(row.argmax()))
        row = model.forward([Rows(0, len(text) - 1, text[-1:], 1)])[0]
    return text[len(prompt) :]


def drafted(model: Model, head: Head, prompt: Sequence[int], count: int) -> list[int]:
    """The head's tokens after the model's next one."""
    model.release(1)
    token = int(model.forward([Rows(1, 0, prompt, 1)])[0].argmax())
    logits = head.forward([HeadRows(1, 1, [*prompt[1:], token], model.features(), 1)])
    found = [int(logits[0].argmax())]
    while len(found) < count:
        at = len(prompt) + len(found)
        found.append(int(head.forward([HeadRows(1, at, found[-1:], None, 1)])[0].argmax()))
    return found
