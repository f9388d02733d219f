"""llama.cpp's C API, build 11549, as far as Foredraft uses it: structs, constants, functions.

Written by scripts/bind_llama_cpp.py; do not edit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

VERSION: Final = "2026.10.11549"
"""The version of the xllamacpp package with this llama.cpp."""

GGML_BACKEND_DEVICE_TYPE_ACCEL: Final = 3
GGML_BACKEND_DEVICE_TYPE_CPU: Final = 0
GGML_BACKEND_DEVICE_TYPE_GPU: Final = 1
GGML_BACKEND_DEVICE_TYPE_IGPU: Final = 2
GGML_QNT_VERSION: Final = 2
GGUF_DEFAULT_ALIGNMENT: Final = 32
LLAMA_LOAD_MODE_MMAP: Final = 1
LLAMA_LOAD_MODE_NONE: Final = 0
LLAMA_POOLING_TYPE_CLS: Final = 2
LLAMA_POOLING_TYPE_LAST: Final = 3
LLAMA_POOLING_TYPE_MEAN: Final = 1
LLAMA_POOLING_TYPE_RANK: Final = 4
LLAMA_STATE_SEQ_FLAGS_NONE: Final = 0
LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: Final = 1
LLAMA_TOKEN_ATTR_CONTROL: Final = 8
LLAMA_TOKEN_ATTR_LSTRIP: Final = 128
LLAMA_TOKEN_ATTR_RSTRIP: Final = 256
LLAMA_TOKEN_ATTR_UNKNOWN: Final = 1


class ggml_init_params(ctypes.Structure):
    mem_size: int
    mem_buffer: Any
    no_alloc: bool
    _fields_ = (
        ("mem_size", ctypes.c_uint64),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class gguf_init_params(ctypes.Structure):
    no_alloc: bool
    ctx: Any
    _fields_ = (
        ("no_alloc", ctypes.c_bool),
        ("ctx", ctypes.POINTER(ctypes.c_void_p)),
    )


class llama_batch(ctypes.Structure):
    n_tokens: int
    token: Any
    embd: Any
    pos: Any
    n_seq_id: Any
    seq_id: Any
    logits: Any
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class llama_context_params(ctypes.Structure):
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_rs_seq: int
    n_outputs_max: int
    n_outputs_max_per_seq: int
    n_threads: int
    n_threads_batch: int
    ctx_type: int
    rope_scaling_type: int
    pooling_type: int
    attention_type: int
    flash_attn_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    defrag_thold: float
    cb_eval: Any
    cb_eval_user_data: Any
    type_k: int
    type_v: int
    moe_cache_size: int
    abort_callback: Any
    abort_callback_data: Any
    embeddings: bool
    offload_kqv: bool
    no_perf: bool
    op_offload: bool
    swa_full: bool
    kv_unified: bool
    samplers: Any
    n_samplers: int
    ctx_other: Any
    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("n_rs_seq", ctypes.c_uint32),
        ("n_outputs_max", ctypes.c_uint32),
        ("n_outputs_max_per_seq", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("ctx_type", ctypes.c_int),
        ("rope_scaling_type", ctypes.c_int),
        ("pooling_type", ctypes.c_int),
        ("attention_type", ctypes.c_int),
        ("flash_attn_type", ctypes.c_int),
        ("rope_freq_base", ctypes.c_float),
        ("rope_freq_scale", ctypes.c_float),
        ("yarn_ext_factor", ctypes.c_float),
        ("yarn_attn_factor", ctypes.c_float),
        ("yarn_beta_fast", ctypes.c_float),
        ("yarn_beta_slow", ctypes.c_float),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag_thold", ctypes.c_float),
        ("cb_eval", ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)),
        ("cb_eval_user_data", ctypes.c_void_p),
        ("type_k", ctypes.c_int),
        ("type_v", ctypes.c_int),
        ("moe_cache_size", ctypes.c_uint64),
        ("abort_callback", ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)),
        ("abort_callback_data", ctypes.c_void_p),
        ("embeddings", ctypes.c_bool),
        ("offload_kqv", ctypes.c_bool),
        ("no_perf", ctypes.c_bool),
        ("op_offload", ctypes.c_bool),
        ("swa_full", ctypes.c_bool),
        ("kv_unified", ctypes.c_bool),
        ("samplers", ctypes.c_void_p),
        ("n_samplers", ctypes.c_uint64),
        ("ctx_other", ctypes.c_void_p),
    )


class llama_model_params(ctypes.Structure):
    devices: Any
    tensor_buft_overrides: Any
    n_gpu_layers: int
    split_mode: int
    load_mode: int
    lazy_mode: int
    main_gpu: int
    tensor_split: Any
    progress_callback: Any
    progress_callback_user_data: Any
    kv_overrides: Any
    vocab_only: bool
    check_tensors: bool
    use_extra_bufts: bool
    no_host: bool
    no_alloc: bool
    load_mtp: bool
    _fields_ = (
        ("devices", ctypes.POINTER(ctypes.c_void_p)),
        ("tensor_buft_overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", ctypes.POINTER(ctypes.c_float)),
        ("progress_callback", ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_float, ctypes.c_void_p)),
        ("progress_callback_user_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("no_host", ctypes.c_bool),
        ("no_alloc", ctypes.c_bool),
        ("load_mtp", ctypes.c_bool),
    )


class llama_perf_context_data(ctypes.Structure):
    t_start_ms: float
    t_load_ms: float
    t_p_eval_ms: float
    t_eval_ms: float
    n_p_eval: int
    n_eval: int
    n_reused: int
    _fields_ = (
        ("t_start_ms", ctypes.c_double),
        ("t_load_ms", ctypes.c_double),
        ("t_p_eval_ms", ctypes.c_double),
        ("t_eval_ms", ctypes.c_double),
        ("n_p_eval", ctypes.c_int32),
        ("n_eval", ctypes.c_int32),
        ("n_reused", ctypes.c_int32),
    )


ggml_abort_callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)


ggml_abort_callback_t = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


ggml_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class ggml_tensor(ctypes.Structure):
    type: int
    buffer: Any
    ne: Any
    nb: Any
    op: int
    op_params: Any
    flags: int
    src: Any
    view_src: Any
    view_offs: int
    data: Any
    name: Any
    extra: Any
    padding: Any
    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_uint64 * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_int8 * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_int8 * 8),
    )


class ggml_type(IntEnum):
    GGML_TYPE_F32 = 0
    GGML_TYPE_F16 = 1
    GGML_TYPE_Q4_0 = 2
    GGML_TYPE_Q4_1 = 3
    GGML_TYPE_Q5_0 = 6
    GGML_TYPE_Q5_1 = 7
    GGML_TYPE_Q8_0 = 8
    GGML_TYPE_Q8_1 = 9
    GGML_TYPE_Q2_K = 10
    GGML_TYPE_Q3_K = 11
    GGML_TYPE_Q4_K = 12
    GGML_TYPE_Q5_K = 13
    GGML_TYPE_Q6_K = 14
    GGML_TYPE_Q8_K = 15
    GGML_TYPE_IQ2_XXS = 16
    GGML_TYPE_IQ2_XS = 17
    GGML_TYPE_IQ3_XXS = 18
    GGML_TYPE_IQ1_S = 19
    GGML_TYPE_IQ4_NL = 20
    GGML_TYPE_IQ3_S = 21
    GGML_TYPE_IQ2_S = 22
    GGML_TYPE_IQ4_XS = 23
    GGML_TYPE_I8 = 24
    GGML_TYPE_I16 = 25
    GGML_TYPE_I32 = 26
    GGML_TYPE_I64 = 27
    GGML_TYPE_F64 = 28
    GGML_TYPE_IQ1_M = 29
    GGML_TYPE_BF16 = 30
    GGML_TYPE_TQ1_0 = 34
    GGML_TYPE_TQ2_0 = 35
    GGML_TYPE_MXFP4 = 39
    GGML_TYPE_NVFP4 = 40
    GGML_TYPE_Q1_0 = 41
    GGML_TYPE_Q2_0 = 42
    GGML_TYPE_COUNT = 43


class ggml_type_traits(ctypes.Structure):
    type_name: bytes | None
    blck_size: int
    blck_size_interleave: int
    type_size: int
    is_quantized: bool
    to_float: Any
    from_float_ref: Any
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_uint64),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64)),
        (
            "from_float_ref",
            ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int64),
        ),
    )


class llama_context_type(IntEnum):
    LLAMA_CONTEXT_TYPE_DEFAULT = 0
    LLAMA_CONTEXT_TYPE_MTP = 1


class llama_ftype(IntEnum):
    LLAMA_FTYPE_ALL_F32 = 0
    LLAMA_FTYPE_MOSTLY_F16 = 1
    LLAMA_FTYPE_MOSTLY_Q4_0 = 2
    LLAMA_FTYPE_MOSTLY_Q4_1 = 3
    LLAMA_FTYPE_MOSTLY_Q8_0 = 7
    LLAMA_FTYPE_MOSTLY_Q5_0 = 8
    LLAMA_FTYPE_MOSTLY_Q5_1 = 9
    LLAMA_FTYPE_MOSTLY_Q2_K = 10
    LLAMA_FTYPE_MOSTLY_Q3_K_S = 11
    LLAMA_FTYPE_MOSTLY_Q3_K_M = 12
    LLAMA_FTYPE_MOSTLY_Q3_K_L = 13
    LLAMA_FTYPE_MOSTLY_Q4_K_S = 14
    LLAMA_FTYPE_MOSTLY_Q4_K_M = 15
    LLAMA_FTYPE_MOSTLY_Q5_K_S = 16
    LLAMA_FTYPE_MOSTLY_Q5_K_M = 17
    LLAMA_FTYPE_MOSTLY_Q6_K = 18
    LLAMA_FTYPE_MOSTLY_IQ2_XXS = 19
    LLAMA_FTYPE_MOSTLY_IQ2_XS = 20
    LLAMA_FTYPE_MOSTLY_Q2_K_S = 21
    LLAMA_FTYPE_MOSTLY_IQ3_XS = 22
    LLAMA_FTYPE_MOSTLY_IQ3_XXS = 23
    LLAMA_FTYPE_MOSTLY_IQ1_S = 24
    LLAMA_FTYPE_MOSTLY_IQ4_NL = 25
    LLAMA_FTYPE_MOSTLY_IQ3_S = 26
    LLAMA_FTYPE_MOSTLY_IQ3_M = 27
    LLAMA_FTYPE_MOSTLY_IQ2_S = 28
    LLAMA_FTYPE_MOSTLY_IQ2_M = 29
    LLAMA_FTYPE_MOSTLY_IQ4_XS = 30
    LLAMA_FTYPE_MOSTLY_IQ1_M = 31
    LLAMA_FTYPE_MOSTLY_BF16 = 32
    LLAMA_FTYPE_MOSTLY_TQ1_0 = 36
    LLAMA_FTYPE_MOSTLY_TQ2_0 = 37
    LLAMA_FTYPE_MOSTLY_MXFP4_MOE = 38
    LLAMA_FTYPE_MOSTLY_NVFP4 = 39
    LLAMA_FTYPE_MOSTLY_Q1_0 = 40
    LLAMA_FTYPE_MOSTLY_Q2_0 = 41
    LLAMA_FTYPE_GUESSED = 1024


llama_progress_callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_float, ctypes.c_void_p)


class llama_rope_type(IntEnum):
    LLAMA_ROPE_TYPE_NONE = -1
    LLAMA_ROPE_TYPE_NORM = 0
    LLAMA_ROPE_TYPE_NEOX = 2
    LLAMA_ROPE_TYPE_MROPE = 8
    LLAMA_ROPE_TYPE_IMROPE = 40
    LLAMA_ROPE_TYPE_VISION = 24


llama_token = ctypes.c_int32


class Functions:
    """The functions, as attributes of a loaded library."""

    ggml_backend_alloc_ctx_tensors_from_buft: Callable[[Any, Any], Any]
    ggml_backend_buffer_clear: Callable[[Any, int], None]
    ggml_backend_buffer_free: Callable[[Any], None]
    ggml_backend_buffer_get_base: Callable[[Any], Any]
    ggml_backend_buffer_get_size: Callable[[Any], int]
    ggml_backend_cpu_buffer_type: Callable[[], Any]
    ggml_backend_cpu_reg: Callable[[], Any]
    ggml_backend_dev_count: Callable[[], int]
    ggml_backend_dev_description: Callable[[Any], bytes | None]
    ggml_backend_dev_get: Callable[[int], Any]
    ggml_backend_dev_memory: Callable[[Any, Any, Any], None]
    ggml_backend_dev_name: Callable[[Any], bytes | None]
    ggml_backend_dev_type: Callable[[Any], int]
    ggml_backend_free: Callable[[Any], None]
    ggml_backend_graph_compute: Callable[[Any, Any], int]
    ggml_backend_init_by_type: Callable[[int, Any], Any]
    ggml_backend_load_all_from_path: Callable[[Any], None]
    ggml_backend_reg_count: Callable[[], int]
    ggml_backend_reg_dev_get: Callable[[Any, int], Any]
    ggml_backend_reg_get: Callable[[int], Any]
    ggml_backend_reg_get_proc_address: Callable[[Any, Any], Any]
    ggml_backend_reg_name: Callable[[Any], bytes | None]
    ggml_backend_tensor_get: Callable[[Any, Any, int, int], None]
    ggml_backend_tensor_set: Callable[[Any, Any, int, int], None]
    ggml_blck_size: Callable[[int], int]
    ggml_build_forward_expand: Callable[[Any, Any], None]
    ggml_fill: Callable[[Any, Any, float], Any]
    ggml_flash_attn_ext: Callable[[Any, Any, Any, Any, Any, float, float, float], Any]
    ggml_free: Callable[[Any], None]
    ggml_get_first_tensor: Callable[[Any], Any]
    ggml_get_name: Callable[[Any], bytes | None]
    ggml_get_next_tensor: Callable[[Any, Any], Any]
    ggml_get_type_traits: Callable[[int], Any]
    ggml_init: Callable[[ggml_init_params], Any]
    ggml_log_set: Callable[[Any, Any], None]
    ggml_mul_mat: Callable[[Any, Any, Any], Any]
    ggml_new_graph: Callable[[Any], Any]
    ggml_new_tensor_4d: Callable[[Any, int, int, int, int, int], Any]
    ggml_quantize_chunk: Callable[[int, Any, Any, int, int, int, Any], int]
    ggml_row_size: Callable[[int, int], int]
    ggml_set_abort_callback: Callable[[Any], Any]
    ggml_type_name: Callable[[int], bytes | None]
    ggml_validate_row_data: Callable[[int, Any, int], bool]
    ggml_version: Callable[[], bytes | None]
    gguf_add_tensor: Callable[[Any, Any], None]
    gguf_free: Callable[[Any], None]
    gguf_get_arr_data: Callable[[Any, int], Any]
    gguf_get_arr_n: Callable[[Any, int], int]
    gguf_get_arr_str: Callable[[Any, int, int], bytes | None]
    gguf_get_arr_type: Callable[[Any, int], int]
    gguf_get_data_offset: Callable[[Any], int]
    gguf_get_key: Callable[[Any, int], bytes | None]
    gguf_get_kv_type: Callable[[Any, int], int]
    gguf_get_meta_data: Callable[[Any, Any], None]
    gguf_get_meta_size: Callable[[Any], int]
    gguf_get_n_kv: Callable[[Any], int]
    gguf_get_n_tensors: Callable[[Any], int]
    gguf_get_tensor_name: Callable[[Any, int], bytes | None]
    gguf_get_tensor_ne: Callable[[Any, int], Any]
    gguf_get_tensor_offset: Callable[[Any, int], int]
    gguf_get_tensor_size: Callable[[Any, int], int]
    gguf_get_tensor_type: Callable[[Any, int], int]
    gguf_get_val_data: Callable[[Any, int], Any]
    gguf_get_val_str: Callable[[Any, int], bytes | None]
    gguf_get_version: Callable[[Any], int]
    gguf_init_empty: Callable[[], Any]
    gguf_init_from_file: Callable[[Any, gguf_init_params], Any]
    gguf_remove_key: Callable[[Any, Any], int]
    gguf_set_kv: Callable[[Any, Any], None]
    gguf_set_tensor_type: Callable[[Any, Any, int], None]
    gguf_set_val_u32: Callable[[Any, Any, int], None]
    llama_adapter_lora_init: Callable[[Any, Any], Any]
    llama_backend_init: Callable[[], None]
    llama_batch_free: Callable[[llama_batch], None]
    llama_batch_get_one: Callable[[Any, int], llama_batch]
    llama_batch_init: Callable[[int, int, int], llama_batch]
    llama_context_default_params: Callable[[], llama_context_params]
    llama_decode: Callable[[Any, llama_batch], int]
    llama_encode: Callable[[Any, llama_batch], int]
    llama_free: Callable[[Any], None]
    llama_ftype_name: Callable[[int], bytes | None]
    llama_get_causal_attn: Callable[[Any], bool]
    llama_get_embeddings_seq: Callable[[Any, int], Any]
    llama_get_logits: Callable[[Any], Any]
    llama_get_logits_ith: Callable[[Any, int], Any]
    llama_get_memory: Callable[[Any], Any]
    llama_get_model: Callable[[Any], Any]
    llama_init_from_model: Callable[[Any, llama_context_params], Any]
    llama_log_set: Callable[[Any, Any], None]
    llama_memory_clear: Callable[[Any, bool], None]
    llama_memory_seq_pos_max: Callable[[Any, int], int]
    llama_memory_seq_rm: Callable[[Any, int, int, int], bool]
    llama_model_chat_template: Callable[[Any, Any], bytes | None]
    llama_model_default_params: Callable[[], llama_model_params]
    llama_model_desc: Callable[[Any, Any, int], int]
    llama_model_free: Callable[[Any], None]
    llama_model_ftype: Callable[[Any], int]
    llama_model_get_vocab: Callable[[Any], Any]
    llama_model_has_decoder: Callable[[Any], bool]
    llama_model_has_encoder: Callable[[Any], bool]
    llama_model_is_hybrid: Callable[[Any], bool]
    llama_model_is_recurrent: Callable[[Any], bool]
    llama_model_load_from_file: Callable[[Any, llama_model_params], Any]
    llama_model_meta_val_str: Callable[[Any, Any, Any, int], int]
    llama_model_n_cls_out: Callable[[Any], int]
    llama_model_n_ctx_train: Callable[[Any], int]
    llama_model_n_embd: Callable[[Any], int]
    llama_model_n_embd_inp: Callable[[Any], int]
    llama_model_n_embd_out: Callable[[Any], int]
    llama_model_n_head: Callable[[Any], int]
    llama_model_n_head_kv: Callable[[Any], int]
    llama_model_n_layer: Callable[[Any], int]
    llama_model_n_layer_nextn: Callable[[Any], int]
    llama_model_n_params: Callable[[Any], int]
    llama_model_n_swa: Callable[[Any], int]
    llama_model_rope_type: Callable[[Any], int]
    llama_model_size: Callable[[Any], int]
    llama_n_batch: Callable[[Any], int]
    llama_n_rs_seq: Callable[[Any], int]
    llama_n_seq_max: Callable[[Any], int]
    llama_n_threads: Callable[[Any], int]
    llama_n_ubatch: Callable[[Any], int]
    llama_perf_context: Callable[[Any], llama_perf_context_data]
    llama_print_system_info: Callable[[], bytes | None]
    llama_set_abort_callback: Callable[[Any, Any, Any], None]
    llama_set_adapters_lora: Callable[[Any, Any, int, Any], int]
    llama_set_causal_attn: Callable[[Any, bool], None]
    llama_set_embeddings: Callable[[Any, bool], None]
    llama_set_n_threads: Callable[[Any, int, int], None]
    llama_state_seq_get_data_ext: Callable[[Any, Any, int, int, int], int]
    llama_state_seq_get_size_ext: Callable[[Any, int, int], int]
    llama_state_seq_set_data_ext: Callable[[Any, Any, int, int, int], int]
    llama_supports_gpu_offload: Callable[[], bool]
    llama_token_to_piece: Callable[[Any, int, Any, int, int, bool], int]
    llama_tokenize: Callable[[Any, Any, int, Any, int, bool, bool], int]
    llama_version: Callable[[], bytes | None]
    llama_vocab_bos: Callable[[Any], int]
    llama_vocab_eos: Callable[[Any], int]
    llama_vocab_fim_mid: Callable[[Any], int]
    llama_vocab_fim_pre: Callable[[Any], int]
    llama_vocab_fim_suf: Callable[[Any], int]
    llama_vocab_get_add_bos: Callable[[Any], bool]
    llama_vocab_get_add_eos: Callable[[Any], bool]
    llama_vocab_get_add_sep: Callable[[Any], bool]
    llama_vocab_get_attr: Callable[[Any, int], int]
    llama_vocab_get_text: Callable[[Any, int], bytes | None]
    llama_vocab_is_eog: Callable[[Any, int], bool]
    llama_vocab_mask: Callable[[Any], int]
    llama_vocab_n_tokens: Callable[[Any], int]
    llama_vocab_pad: Callable[[Any], int]
    llama_vocab_sep: Callable[[Any], int]


SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "ggml_backend_alloc_ctx_tensors_from_buft": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)),
    "ggml_backend_buffer_clear": (None, (ctypes.c_void_p, ctypes.c_uint8)),
    "ggml_backend_buffer_free": (None, (ctypes.c_void_p,)),
    "ggml_backend_buffer_get_base": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "ggml_backend_buffer_get_size": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "ggml_backend_cpu_buffer_type": (ctypes.c_void_p, ()),
    "ggml_backend_cpu_reg": (ctypes.c_void_p, ()),
    "ggml_backend_dev_count": (ctypes.c_uint64, ()),
    "ggml_backend_dev_description": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "ggml_backend_dev_get": (ctypes.c_void_p, (ctypes.c_uint64,)),
    "ggml_backend_dev_memory": (
        None,
        (ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)),
    ),
    "ggml_backend_dev_name": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "ggml_backend_dev_type": (ctypes.c_int, (ctypes.c_void_p,)),
    "ggml_backend_free": (None, (ctypes.c_void_p,)),
    "ggml_backend_graph_compute": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
    "ggml_backend_init_by_type": (ctypes.c_void_p, (ctypes.c_int, ctypes.c_char_p)),
    "ggml_backend_load_all_from_path": (None, (ctypes.c_char_p,)),
    "ggml_backend_reg_count": (ctypes.c_uint64, ()),
    "ggml_backend_reg_dev_get": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_uint64)),
    "ggml_backend_reg_get": (ctypes.c_void_p, (ctypes.c_uint64,)),
    "ggml_backend_reg_get_proc_address": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)),
    "ggml_backend_reg_name": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "ggml_backend_tensor_get": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)),
    "ggml_backend_tensor_set": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)),
    "ggml_blck_size": (ctypes.c_int64, (ctypes.c_int,)),
    "ggml_build_forward_expand": (None, (ctypes.c_void_p, ctypes.c_void_p)),
    "ggml_fill": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float)),
    "ggml_flash_attn_ext": (
        ctypes.c_void_p,
        (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_float,
            ctypes.c_float,
            ctypes.c_float,
        ),
    ),
    "ggml_free": (None, (ctypes.c_void_p,)),
    "ggml_get_first_tensor": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "ggml_get_name": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "ggml_get_next_tensor": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)),
    "ggml_get_type_traits": (ctypes.c_void_p, (ctypes.c_int,)),
    "ggml_init": (ctypes.c_void_p, (ggml_init_params,)),
    "ggml_log_set": (
        None,
        (ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p), ctypes.c_void_p),
    ),
    "ggml_mul_mat": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
    "ggml_new_graph": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "ggml_new_tensor_4d": (
        ctypes.c_void_p,
        (ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
    ),
    "ggml_quantize_chunk": (
        ctypes.c_uint64,
        (
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_float),
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.POINTER(ctypes.c_float),
        ),
    ),
    "ggml_row_size": (ctypes.c_uint64, (ctypes.c_int, ctypes.c_int64)),
    "ggml_set_abort_callback": (
        ctypes.CFUNCTYPE(None, ctypes.c_char_p),
        (ctypes.CFUNCTYPE(None, ctypes.c_char_p),),
    ),
    "ggml_type_name": (ctypes.c_char_p, (ctypes.c_int,)),
    "ggml_validate_row_data": (ctypes.c_bool, (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)),
    "ggml_version": (ctypes.c_char_p, ()),
    "gguf_add_tensor": (None, (ctypes.c_void_p, ctypes.c_void_p)),
    "gguf_free": (None, (ctypes.c_void_p,)),
    "gguf_get_arr_data": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_arr_n": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_arr_str": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64)),
    "gguf_get_arr_type": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_data_offset": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "gguf_get_key": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_kv_type": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_meta_data": (None, (ctypes.c_void_p, ctypes.c_void_p)),
    "gguf_get_meta_size": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "gguf_get_n_kv": (ctypes.c_int64, (ctypes.c_void_p,)),
    "gguf_get_n_tensors": (ctypes.c_int64, (ctypes.c_void_p,)),
    "gguf_get_tensor_name": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_tensor_ne": (ctypes.POINTER(ctypes.c_int64), (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_tensor_offset": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_tensor_size": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_tensor_type": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_val_data": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_val_str": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int64)),
    "gguf_get_version": (ctypes.c_uint32, (ctypes.c_void_p,)),
    "gguf_init_empty": (ctypes.c_void_p, ()),
    "gguf_init_from_file": (ctypes.c_void_p, (ctypes.c_char_p, gguf_init_params)),
    "gguf_remove_key": (ctypes.c_int64, (ctypes.c_void_p, ctypes.c_char_p)),
    "gguf_set_kv": (None, (ctypes.c_void_p, ctypes.c_void_p)),
    "gguf_set_tensor_type": (None, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)),
    "gguf_set_val_u32": (None, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32)),
    "llama_adapter_lora_init": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)),
    "llama_backend_init": (None, ()),
    "llama_batch_free": (None, (llama_batch,)),
    "llama_batch_get_one": (llama_batch, (ctypes.POINTER(ctypes.c_int32), ctypes.c_int32)),
    "llama_batch_init": (llama_batch, (ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
    "llama_context_default_params": (llama_context_params, ()),
    "llama_decode": (ctypes.c_int32, (ctypes.c_void_p, llama_batch)),
    "llama_encode": (ctypes.c_int32, (ctypes.c_void_p, llama_batch)),
    "llama_free": (None, (ctypes.c_void_p,)),
    "llama_ftype_name": (ctypes.c_char_p, (ctypes.c_int,)),
    "llama_get_causal_attn": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_get_embeddings_seq": (ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p, ctypes.c_int32)),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p,)),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p, ctypes.c_int32)),
    "llama_get_memory": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_get_model": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_init_from_model": (ctypes.c_void_p, (ctypes.c_void_p, llama_context_params)),
    "llama_log_set": (
        None,
        (ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p), ctypes.c_void_p),
    ),
    "llama_memory_clear": (None, (ctypes.c_void_p, ctypes.c_bool)),
    "llama_memory_seq_pos_max": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_int32)),
    "llama_memory_seq_rm": (ctypes.c_bool, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
    "llama_model_chat_template": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_char_p)),
    "llama_model_default_params": (llama_model_params, ()),
    "llama_model_desc": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)),
    "llama_model_free": (None, (ctypes.c_void_p,)),
    "llama_model_ftype": (ctypes.c_int, (ctypes.c_void_p,)),
    "llama_model_get_vocab": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_model_has_decoder": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_model_has_encoder": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_model_is_hybrid": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_model_is_recurrent": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_model_load_from_file": (ctypes.c_void_p, (ctypes.c_char_p, llama_model_params)),
    "llama_model_meta_val_str": (
        ctypes.c_int32,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
    ),
    "llama_model_n_cls_out": (ctypes.c_uint32, (ctypes.c_void_p,)),
    "llama_model_n_ctx_train": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_embd": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_embd_inp": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_embd_out": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_head": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_head_kv": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_layer": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_layer_nextn": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_n_params": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "llama_model_n_swa": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_model_rope_type": (ctypes.c_int, (ctypes.c_void_p,)),
    "llama_model_size": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "llama_n_batch": (ctypes.c_uint32, (ctypes.c_void_p,)),
    "llama_n_rs_seq": (ctypes.c_uint32, (ctypes.c_void_p,)),
    "llama_n_seq_max": (ctypes.c_uint32, (ctypes.c_void_p,)),
    "llama_n_threads": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_n_ubatch": (ctypes.c_uint32, (ctypes.c_void_p,)),
    "llama_perf_context": (llama_perf_context_data, (ctypes.c_void_p,)),
    "llama_print_system_info": (ctypes.c_char_p, ()),
    "llama_set_abort_callback": (
        None,
        (ctypes.c_void_p, ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p), ctypes.c_void_p),
    ),
    "llama_set_adapters_lora": (
        ctypes.c_int32,
        (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.POINTER(ctypes.c_float)),
    ),
    "llama_set_causal_attn": (None, (ctypes.c_void_p, ctypes.c_bool)),
    "llama_set_embeddings": (None, (ctypes.c_void_p, ctypes.c_bool)),
    "llama_set_n_threads": (None, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
    "llama_state_seq_get_data_ext": (
        ctypes.c_uint64,
        (ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint32),
    ),
    "llama_state_seq_get_size_ext": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32)),
    "llama_state_seq_set_data_ext": (
        ctypes.c_uint64,
        (ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint32),
    ),
    "llama_supports_gpu_offload": (ctypes.c_bool, ()),
    "llama_token_to_piece": (
        ctypes.c_int32,
        (ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool),
    ),
    "llama_tokenize": (
        ctypes.c_int32,
        (
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int32,
            ctypes.POINTER(ctypes.c_int32),
            ctypes.c_int32,
            ctypes.c_bool,
            ctypes.c_bool,
        ),
    ),
    "llama_version": (ctypes.c_char_p, ()),
    "llama_vocab_bos": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_eos": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_fim_mid": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_fim_pre": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_fim_suf": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_get_add_bos": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_vocab_get_add_eos": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_vocab_get_add_sep": (ctypes.c_bool, (ctypes.c_void_p,)),
    "llama_vocab_get_attr": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
    "llama_vocab_get_text": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int32)),
    "llama_vocab_is_eog": (ctypes.c_bool, (ctypes.c_void_p, ctypes.c_int32)),
    "llama_vocab_mask": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_n_tokens": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_pad": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_vocab_sep": (ctypes.c_int32, (ctypes.c_void_p,)),
}
"""The ctypes types of each function's result and arguments."""

LLAMA_VERSION: Final = "0.6.0-dev"
"""What `llama_version` returns."""

GGML_VERSION: Final = "0.26.0"
"""What `ggml_version` returns."""

DEFAULTS: Final[dict[str, dict[str, int | float | bool]]] = {
    "llama_context_default_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_rs_seq": 0,
        "n_outputs_max": 0,
        "n_outputs_max_per_seq": 1,
        "n_threads": 4,
        "n_threads_batch": 4,
        "ctx_type": 0,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "flash_attn_type": -1,
        "rope_freq_base": 0.0,
        "rope_freq_scale": 0.0,
        "yarn_ext_factor": -1.0,
        "yarn_attn_factor": -1.0,
        "yarn_beta_fast": -1.0,
        "yarn_beta_slow": -1.0,
        "yarn_orig_ctx": 0,
        "defrag_thold": -1.0,
        "type_k": 1,
        "type_v": 1,
        "moe_cache_size": 0,
        "embeddings": False,
        "offload_kqv": True,
        "no_perf": True,
        "op_offload": True,
        "swa_full": True,
        "kv_unified": False,
        "n_samplers": 0,
    },
    "llama_model_default_params": {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "lazy_mode": 1,
        "main_gpu": 0,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
        "no_alloc": False,
        "load_mtp": False,
    },
}
"""What these functions return: other values mean that a library has other structs."""
