"""libmtmd: llama.cpp's functions that turn images into rows of embeddings.

The packaged library exports them beside llama.cpp's own; one that the user names may have them in a file
libmtmd of its own, or not at all. Read in tools/mtmd/mtmd.h of the version that is pinned; structs are
checked by their default values.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_ubyte, c_uint32, c_void_p
from functools import cache
from typing import Any

from foredraft.backends.llamacpp import binding, log
from foredraft.errors import MissingDependencyError

IMAGE = 1
"""The type of a chunk that is an image; that of text is 0."""

TEXT = 0


class ContextParams(ctypes.Structure):
    """`mtmd_context_params`."""

    _fields_ = (
        ("use_gpu", c_bool),
        ("device", c_void_p),
        ("print_timings", c_bool),
        ("n_threads", c_int),
        ("image_marker", c_char_p),
        ("media_marker", c_char_p),
        ("flash_attn_type", c_int),
        ("warmup", c_bool),
        ("image_min_tokens", c_int),
        ("image_max_tokens", c_int),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("batch_max_tokens", c_int32),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
    )


class InputText(ctypes.Structure):
    """`mtmd_input_text`."""

    _fields_ = (
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("add_special", c_bool),
        ("parse_special", c_bool),
    )


class DecoderPos(ctypes.Structure):
    """`mtmd_decoder_pos`."""

    _fields_ = (("t", c_uint32), ("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


_DEFAULTS = {
    "use_gpu": True,
    "print_timings": True,
    "n_threads": 4,
    "image_marker": None,
    "flash_attn_type": -1,
    "warmup": True,
    "image_min_tokens": -1,
    "image_max_tokens": -1,
    "batch_max_tokens": 1024,
    "progress_callback": None,
}

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mtmd_default_marker": (c_char_p, ()),
    "mtmd_context_params_default": (ContextParams, ()),
    "mtmd_init_from_file": (c_void_p, (c_char_p, c_void_p, ContextParams)),
    "mtmd_free": (None, (c_void_p,)),
    "mtmd_support_vision": (c_bool, (c_void_p,)),
    "mtmd_decode_use_non_causal": (c_bool, (c_void_p, c_void_p)),
    "mtmd_decode_use_mrope": (c_bool, (c_void_p,)),
    "mtmd_log_set": (None, (c_void_p, c_void_p)),
    "mtmd_bitmap_init": (c_void_p, (c_uint32, c_uint32, POINTER(c_ubyte))),
    "mtmd_bitmap_set_id": (None, (c_void_p, c_char_p)),
    "mtmd_bitmap_free": (None, (c_void_p,)),
    "mtmd_input_chunks_init": (c_void_p, ()),
    "mtmd_input_chunks_size": (c_size_t, (c_void_p,)),
    "mtmd_input_chunks_get": (c_void_p, (c_void_p, c_size_t)),
    "mtmd_input_chunks_free": (None, (c_void_p,)),
    "mtmd_input_chunk_get_type": (c_int, (c_void_p,)),
    "mtmd_input_chunk_get_tokens_text": (POINTER(c_int32), (c_void_p, POINTER(c_size_t))),
    "mtmd_input_chunk_get_tokens_image": (c_void_p, (c_void_p,)),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, (c_void_p,)),
    "mtmd_input_chunk_get_n_pos": (c_int32, (c_void_p,)),
    "mtmd_image_tokens_get_decoder_pos": (DecoderPos, (c_void_p, c_int32, c_size_t)),
    "mtmd_tokenize": (
        c_int32,
        (c_void_p, c_void_p, POINTER(InputText), POINTER(c_void_p), c_size_t),
    ),
    "mtmd_encode_chunk": (c_int32, (c_void_p, c_void_p)),
    "mtmd_get_output_embd": (POINTER(c_float), (c_void_p,)),
}


class Functions:
    """The functions, without `mtmd_` in their names."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(handle, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("mtmd_"), function)

    def __getattr__(self, name: str) -> Any:  # for type checkers: all are set
        raise AttributeError(name)


@cache
def functions() -> Functions:
    """The functions of the process's library, whose log goes where llama.cpp's does. Raises
    MissingDependencyError if it has none, or others.
    """
    handle = _handle()
    found = Functions(handle)
    params = found.context_params_default()
    wrong = [name for name, value in _DEFAULTS.items() if getattr(params, name) != value]
    if wrong or params.media_marker != found.default_marker():
        raise _missing(f"its mtmd_context_params has another {(wrong or ['media_marker'])[0]}")
    log.install_for(found.log_set)
    return found


def _handle() -> ctypes.CDLL:
    library = binding.library()
    if not _lacking(library.handle):
        return library.handle
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    prefix = "" if sys.platform == "win32" else "lib"
    beside = library.path.with_name(f"{prefix}mtmd{suffix}")
    if beside.is_file():
        try:
            handle = ctypes.CDLL(str(beside))
        except OSError as error:
            raise _missing(f"{beside.name} cannot be loaded ({error})") from None
        if not (lacking := _lacking(handle)):
            return handle
        raise _missing(f"{beside.name} lacks {lacking}")
    raise _missing(f"it lacks {_lacking(library.handle)}, and there is no {beside.name} beside it")


def _lacking(handle: ctypes.CDLL) -> str:
    return next((name for name in _SIGNATURES if not hasattr(handle, name)), "")


def _missing(reason: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"Seeing images needs libmtmd, which this llama.cpp library does not have: {reason}.",
        hint="Use the packaged library, or build libmtmd with yours (documentation: llama-library); without "
        "images: --mmproj none.",
    )
