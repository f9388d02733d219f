"""Small models made on the spot as folders of the Hugging Face Hub: configuration, safetensors, tokenizer.

Weights are random but fixed by `seed`. The tokenizer is byte-level BPE with the special tokens and the chat
template of `gguf_factory`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gguf_factory

CONTEXT = 1024
VOCAB = 300

TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": gguf_factory.IM_END,
}

STATES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": gguf_factory.IM_END,
}
"""A model with nothing but recurrent layers."""

MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}

RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", STATES),
    "falcon_mamba": ("FalconMambaConfig", STATES),
    "mamba2": (
        "Mamba2Config",
        STATES | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "chunk_size": 16},
    ),
    "falcon_h1": ("FalconH1Config", TINY | MAMBA2 | {"mamba_d_ssm": 128}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        TINY
        | MAMBA2
        | {
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
        },
    ),
    "bamba": ("BambaConfig", TINY | MAMBA2 | {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]}),
    "nemotron_h": (
        "NemotronHConfig",
        TINY
        | {
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 16,
            "chunk_size": 16,
        },
    ),
    "jamba": (
        "JambaConfig",
        TINY
        | {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "mamba_dt_rank": 8,
        },
    ),
    "zamba": (
        "ZambaConfig",
        TINY
        | {
            "num_hidden_layers": 5,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
            "head_dim": 32,
            "n_mamba_heads": 2,
            "mamba_dt_rank": 8,
        },
    ),
    "zamba2": (
        "Zamba2Config",
        {name: value for name, value in TINY.items() if name != "head_dim"}
        | {
            "num_hidden_layers": 5,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
            "num_key_value_heads": 4,
            "time_step_min": 1e-30,
            "time_step_floor": 1e-30,
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "adapter_rank": 8,
            "use_mem_rope": True,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "mamba_d_state": 16,
            "chunk_size": 16,
        },
    ),
    "rwkv": (
        "RwkvConfig",
        STATES | {"context_length": CONTEXT, "intermediate_size": 96, "rescale_every": 2},
    ),
    "lfm2": (
        "Lfm2Config",
        TINY
        | {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention"] * 2,
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "qwen3_next": ("Qwen3NextConfig", TINY | DELTA_NET | EXPERTS | {"mlp_only_layers": [0, 1, 2, 3]}),
    "qwen3_next_experts": ("Qwen3NextConfig", TINY | DELTA_NET | EXPERTS),
    "qwen3_5": ("Qwen3_5TextConfig", TINY | DELTA_NET),
    "kimi_linear": (
        "KimiLinearConfig",
        {name: value for name, value in TINY.items() if name not in ("head_dim", "num_key_value_heads")}
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense"] * 3,
            "linear_num_heads": 16,
            "linear_head_dim": 8,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    "olmo_hybrid": ("OlmoHybridConfig", TINY | DELTA_NET),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        TINY
        | {
            "num_hidden_layers": 5,
            "intermediate_size": 192,  # of which it takes half
            "lru_width": 128,
            "attention_window_size": 24,
        },
    ),
    "minimax": (
        "MiniMaxConfig",
        TINY | {"num_hidden_layers": 4, "block_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "xlstm": (
        "xLSTMConfig",
        STATES | {"hidden_size": 128, "num_heads": 4, "chunk_size": 16, "norm_eps": 1e-10},
    ),
}
"""Those with a recurrent state, of which all but mixtures of experts are exact."""

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = RECURRENT | {
    "llama": ("LlamaConfig", TINY | {"tie_word_embeddings": True}),
    "mistral": ("MistralConfig", TINY | {"sliding_window": None}),
    "qwen2": ("Qwen2Config", TINY),
    "qwen3": ("Qwen3Config", TINY | {"tie_word_embeddings": True}),
    "smollm3": ("SmolLM3Config", TINY | {"num_hidden_layers": 4}),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": CONTEXT,
            "bos_token_id": None,
            "eos_token_id": gguf_factory.IM_END,
        },
    ),
    "gemma2": (
        "Gemma2Config",
        TINY | {"tie_word_embeddings": False, "query_pre_attn_scalar": 16, "sliding_window": 24},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        TINY | {"tie_word_embeddings": False, "sliding_window": 16, "num_hidden_layers": 6},
    ),
    "phi": ("PhiConfig", TINY),
    "phi3": (
        "Phi3Config",
        {name: value for name, value in TINY.items() if name != "head_dim"} | {"sliding_window": None},
    ),
    "gpt_neox": ("GPTNeoXConfig", TINY),
    "olmo2": ("Olmo2Config", TINY),
    "gpt_oss": (
        "GptOssConfig",
        TINY
        | {
            "sliding_window": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "qwen2_moe": ("Qwen2MoeConfig", TINY | EXPERTS),
    "llama4": (
        "Llama4TextConfig",
        TINY
        | {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 96,
            "num_local_experts": 2,
            "moe_layers": [],
            "no_rope_layers": [1, 1, 1, 0],
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
    ),
    "gptj": (
        "GPTJConfig",
        {
            "vocab_size": VOCAB,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": CONTEXT,
            "rotary_dim": 8,
            "bos_token_id": None,
            "eos_token_id": gguf_factory.IM_END,
        },
    ),
    "bloom": (
        "BloomConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": None,
            "eos_token_id": gguf_factory.IM_END,
        },
    ),
}
"""A configuration class of transformers and its arguments, for each architecture that tests are run over."""

LEAN = ("llama", "mistral", "qwen2", "qwen3", "smollm3")


def make_model(folder: Path, architecture: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a tiny model of an architecture of `ARCHITECTURES`; returns its folder."""
    import torch
    import transformers

    name, arguments = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**copy.deepcopy({**arguments, **changes}))  # it changes them
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # at its usual scale a random model says the same whatever it reads
                parameter.normal_(0, 2.0 * parameter.shape[-1] ** -0.5)
            else:  # norms and biases other than ones and zeros, so that leaving one out shows
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tiny_llama(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a tiny Llama; returns its folder."""
    return make_model(folder, "llama", seed=seed, **changes)


def make_tokenizer(chat_template: str | None = gguf_factory.CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer with no more than `VOCAB` tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(text, special=True) for text in gguf_factory.SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(gguf_factory.CORPUS.splitlines(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = chat_template
    return fast
