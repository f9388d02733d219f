"""Small embedding models and rerankers with random weights: of transformers, and the same weights as GGUF.

BERT has a WordPiece vocabulary, Qwen3 the byte-level one of `gguf_tokenizer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

import gguf_tokenizer
from gguf_parts import new_writer, write

if TYPE_CHECKING:
    from gguf_parts import Tensor

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(5)
TEXT = """
the a of and to in is it was for on with as be at by not this but from or have an they which one you were
all her she there would their we him been has when who will no more if out so up said what its about than
into them can only other time new some could these two may first then do any like my now over such our
man me even most made after also did many off before must well back through years where much your way
down should because long each just state those people too good how make world still see own work men day
get here old life both between being under three never know same last another while us might great go
year
"""
WORDS = re.findall("[a-z]+", TEXT)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
ENDINGS = (*LETTERS, "ing", "ed")
WORD_PIECES = list(dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{ending}" for ending in ENDINGS)]))
CONTEXT = 128


def bert(kind: str = "BertModel", *, seed: int = 0, **config: Any) -> Any:
    """A BERT of transformers with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    made = transformers.BertConfig(
        **{
            "vocab_size": len(WORD_PIECES),
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.3,
            **config,
        }
    )
    return _ready(getattr(transformers, kind)(made))


def qwen3(kind: str = "Qwen3Model", *, seed: int = 0, **config: Any) -> Any:
    """A Qwen3 of transformers with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    made = transformers.Qwen3Config(
        **{
            "vocab_size": 384,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 2048,
            "initializer_range": 0.2,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "pad_token_id": gguf_tokenizer.END_OF_TEXT,
            "eos_token_id": gguf_tokenizer.IM_END,
            **config,
        }
    )
    return _ready(getattr(transformers, kind)(made))


def _ready(model: Any) -> Any:
    import torch

    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith("bias"):
                values.normal_(0.0, 0.1)
            elif values.ndim == 1:
                values.normal_(1.0, 0.1)
    return model.eval()


# --- as GGUF -------------------------------------------------------------------------------------------

_BERT_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
_QWEN3_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_QWEN3 = {"embed_tokens": "token_embd", "norm": "output_norm", "score": "cls.output"}


def bert_gguf(
    path: Path,
    model: Any,
    pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN,
    *,
    labels: Sequence[str] = (),
    twice: bool = False,
) -> Path:
    """Write a BERT of transformers as GGUF. A classifier is written for the pooling RANK, with these labels.
    `twice`: with two tokens of the same text, which llama.cpp does not survive.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("Tiny BERT")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if labels:
        writer.add_classifier_output_labels(labels)
    _add_word_pieces(writer, [*WORD_PIECES[:-1], "a"] if twice else WORD_PIECES)
    rank = pooling is gguf.PoolingType.RANK
    write(writer, _renamed(model, _BERT, _BERT_LAYER, classifier=rank))
    return path


def qwen3_gguf(
    path: Path, model: Any, pooling: gguf.PoolingType | None = gguf.PoolingType.LAST, *, rerank: bool = False
) -> Path:
    """Write a Qwen3 of transformers as GGUF."""
    config = model.config
    writer = new_writer(
        path,
        "qwen3",
        name="Tiny Qwen3 Embedding",
        vocab=config.vocab_size,
        layers=config.num_hidden_layers,
        embd=config.hidden_size,
        ctx_train=config.max_position_embeddings,
        weight_type="f32",
        chat_template=None,
    )
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_add_eos_token(True)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if rerank:
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_chat_template([{"name": "rerank", "template": RERANK_TEMPLATE}])
    write(writer, _renamed(model, _QWEN3, _QWEN3_LAYER, classifier=rerank))
    return path


RERANK_TEMPLATE = "<|im_start|>query: {query}\ndocument: {document}<|im_end|>"


def _add_word_pieces(writer: gguf.GGUFWriter, pieces: list[str]) -> None:
    """In llama.cpp's notation: a word begins with ▁, and its other pieces do not."""
    texts = [
        piece if piece in SPECIAL else piece[2:] if piece.startswith("##") else "\u2581" + piece
        for piece in pieces
    ]
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(texts)
    writer.add_token_types([control if piece in SPECIAL else normal for piece in pieces])
    writer.add_token_type_count(2)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_sep_token_id(SEP)
    writer.add_pad_token_id(PAD)
    writer.add_mask_token_id(MASK)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)


def _renamed(
    model: Any, names: Mapping[str, str], in_layers: Mapping[str, str], *, classifier: bool
) -> Iterator[Tensor]:
    for name, values in model.state_dict().items():
        stem, _, last = name.removeprefix("bert.").removeprefix("model.").rpartition(".")
        if stem.startswith(("encoder.layer.", "layers.")):
            number, _, part = stem.removeprefix("encoder.layer.").removeprefix("layers.").partition(".")
            target = f"blk.{number}.{in_layers[part]}"
        else:
            target = names.get(stem, "")
        if target and (classifier or not target.startswith("cls")):
            yield f"{target}.{last}", np.ascontiguousarray(values.numpy(), np.float32)


# --- as folders ----------------------------------------------------------------------------------------


def save_bert(folder: Path, model: Any, modules: Mapping[str, Any] | None = None, **extra: Any) -> Path:
    """Write a BERT and its tokenizer as a folder; see `_save`."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORD_PIECES) + "\n", encoding="utf-8")
    tokenizer = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=CONTEXT)
    return _save(folder, model, tokenizer, modules, extra)


def _save(
    folder: Path, model: Any, tokenizer: Any, modules: Mapping[str, Any] | None, extra: Mapping[str, Any]
) -> Path:
    """`modules`: the configuration of each part behind the transformer, by its class; `extra`: other files of
    JSON, by their names.
    """
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if modules is not None:
        parts = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for number, (kind, config) in enumerate(modules.items(), 1):
            path = f"{number}_{kind}"
            (folder / path).mkdir()
            (folder / path / "config.json").write_text(json.dumps(config))
            parts.append(
                {
                    "idx": number,
                    "name": str(number),
                    "path": path,
                    "type": f"sentence_transformers.models.{kind}",
                }
            )
        (folder / "modules.json").write_text(json.dumps(parts))
    for name, values in extra.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder
