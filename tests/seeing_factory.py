"""Small random image-text models of transformers, made on the spot: configuration, safetensors, tokenizer,
and the settings of the image processor. `torch_factory` has those that read text only.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

import torch_factory
from foredraft.images import Image

START, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
VOCAB = torch_factory.VOCAB + 16
TEXT = torch_factory.TINY | {"vocab_size": VOCAB, "tie_word_embeddings": False}

_SIGHT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (
        "Qwen2VLConfig",
        {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14},
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 40},
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 14,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 40},
        },
    ),
    "qwen3_vl": (
        "Qwen3VLConfig",
        {
            **TEXT,
            "num_hidden_layers": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]},
        },
        {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 14,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 40},
        },
    ),
    "gemma3": (
        "Gemma3Config",
        {**TEXT, "sliding_window": 64, "num_hidden_layers": 6},
        {**_SIGHT, "vision_use_head": False},
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
    ),
    "smolvlm": (
        "SmolVLMConfig",
        {**TEXT, "model_type": "llama"},
        {**_SIGHT, "model_type": "smolvlm_vision"},
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 112},
            "max_image_size": {"longest_edge": 56},
            "do_image_splitting": True,
        },
    ),
    "llava": (
        "LlavaConfig",
        {**TEXT, "model_type": "llama"},
        {**_SIGHT, "model_type": "clip_vision_model", "projection_dim": 32},
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
        },
    ),
}
"""Configuration class, its text part and its vision part, and the image processor."""

_OWN: dict[str, dict[str, Any]] = {
    "qwen2_vl": {},
    "qwen2_5_vl": {},
    "qwen3_vl": {},
    "gemma3": {"mm_tokens_per_image": 4},
    "smolvlm": {"scale_factor": 2},
    "llava": {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"},
}
_WRITTEN = {"gemma3": START, "llava": PAD, "smolvlm": PAD}
"""What the chat template writes for an image."""


def make_seeing_model(folder: Path, kind: str, *, seed: int = 0, layers: int = 0) -> Path:
    """Write a tiny model of a kind of `MODELS`, with `layers` for text if not 0; returns its folder."""
    import torch
    import transformers

    name, text, vision, processor = copy.deepcopy(MODELS[kind])
    text["num_hidden_layers"] = layers or text["num_hidden_layers"]
    tokenizer = make_tokenizer(_WRITTEN.get(kind, START + PAD + END))
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in (START, PAD, END)}
    own = {**_OWN[kind], "image_token_id": ids[PAD]}
    if kind.startswith("qwen"):
        own |= {
            "vision_start_token_id": ids[START],
            "vision_end_token_id": ids[END],
            "video_token_id": VOCAB - 1,
        }
    if kind == "gemma3":
        own |= {"boi_token_id": ids[START], "eoi_token_id": ids[END]}
    config = getattr(transformers, name)(text_config=text, vision_config=vision, **own)
    config.tie_word_embeddings = False
    torch.manual_seed(seed)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 2.0 * parameter[0].numel() ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(_as_json(processor), encoding="utf-8")
    return folder


def _as_json(value: object) -> str:
    import json

    return json.dumps(value)


def make_tokenizer(written: str) -> Any:
    """That of `torch_factory`, with tokens for images and a template that writes them."""
    tokenizer = torch_factory.make_tokenizer()
    tiles = ["<fake_token_around_image>", "<global-img>", *(f"<row_1_col_{n}>" for n in (1, 2))]
    tokenizer.add_special_tokens({"additional_special_tokens": [START, PAD, END, *tiles]})
    tokenizer.chat_template = (
        "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
        "{%- if message.content is string %}{{ message.content }}{%- else %}"
        "{%- for part in message.content %}"
        "{%- if part.type == 'image' %}" + written + "{%- else %}{{ part.text }}{%- endif %}"
        "{%- endfor %}{%- endif %}<|im_end|>\n{%- endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
    )
    return tokenizer


def picture(seed: int, height: int = 60, width: int = 90) -> Image:
    """Coloured noise over a slope."""
    rng = np.random.default_rng(seed)
    slope = np.linspace(0, 200, width)[None, :, None] + np.zeros((height, 1, 3))
    return Image((slope + rng.integers(0, 56, (height, width, 3))).astype(np.uint8))
