"""Chooses how many versions of a recurrent state llama.cpp keeps for rolling back rejected tokens.

With `n_rs_seq` = n every forward also writes the states before each of its last n rows. A rollback is then
only a change of index, but every forward writes n more states, plain ones too. Measured on gated delta nets
(CPU, Q4_0): a plain forward took 1.02, 1.07, 1.11 and 1.21 times as long with n = 1, 4, 8 and 16 for states
of 0.10 of the weights' size, and no longer up to n = 8 for 0.02. So n is chosen to keep the states within an
eighth of the weights. Longer rollbacks use `rewind`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib

MOST = 16
"""Longer rejections are rare, and then few accepted tokens have to be recomputed."""

SHARE = 1 / 8
"""Maximum size of one sequence's states relative to the weights: about 2 % of a plain forward."""

SHARE_OF_ALL = 1 / 2
"""Maximum size of all sequences' states relative to the weights: a limit on memory."""


ROUNDING = 0.25
"""Maximum difference in standard deviations of the logits. A wrong state causes a difference of 1 to 3 with
random weights, rounding one of less than 0.1.
"""


def keeps_states(context: Any) -> bool:
    """Whether llama.cpp can keep states of this architecture; `context` was created to keep one."""
    return bool(lib.llama_n_rs_seq(context))


def states_to_keep(weights: Any, context: Any) -> int:
    """The best `n_rs_seq` for a model, limited by the size of a ubatch. Computes one token."""
    state = _state_bytes(weights, context)
    if state == 0:
        return 0
    sequences = int(lib.llama_n_seq_max(context))
    size = int(lib.llama_model_size(weights))
    # The last 1 + n rows of each sequence are computed in one ubatch.
    room = int(lib.llama_n_ubatch(context)) // sequences - 1
    return max(0, min(MOST, room, int(SHARE * size / state), int(SHARE_OF_ALL * size / (state * sequences))))


def takes_back_rightly(weights: Any, context: Any) -> bool:
    """Whether llama.cpp computes the right values after a rollback: kernels that do not write the states
    would silently continue from wrong ones. The context is empty afterwards.
    """
    size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights)))
    memory = lib.llama_get_memory(context)
    first, second, last = (token % size for token in (1, 8, 15))
    wrong = [22 % size] * min(3, int(lib.llama_n_rs_seq(context)))
    found: list[npt.NDArray[np.float32]] = []
    for extra in ([], wrong):
        lib.llama_memory_clear(memory, True)  # noqa: FBT003 - C
        decoded = _decode(context, [first]) and _decode(context, [second, *extra])
        taken_back = not extra or bool(lib.llama_memory_seq_rm(memory, 0, 2, -1))
        if not (decoded and taken_back and _decode(context, [last])):
            return False
        found.append(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (size,)).copy())
    lib.llama_memory_clear(memory, True)  # noqa: FBT003 - C
    return bool(np.abs(found[0] - found[1]).max() <= ROUNDING * found[0].std())


def _decode(context: Any, tokens: list[int]) -> bool:
    """Append the tokens to the first sequence. Returns whether it succeeded."""
    array = (abi.llama_token * len(tokens))(*tokens)
    return bool(lib.llama_decode(context, lib.llama_batch_get_one(array, len(tokens))) == 0)


def _state_bytes(weights: Any, context: Any) -> int:
    """The recurrent state of one sequence in bytes. llama.cpp only reports the size for a sequence with a
    state.
    """
    token = max(0, int(lib.llama_vocab_bos(lib.llama_model_get_vocab(weights))))
    if not _decode(context, [token]):
        return 0
    return int(lib.llama_state_seq_get_size_ext(context, 0, abi.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY))
