"""Python's garbage collector, kept from looking at everything that was ever imported between two forwards.

A full collection looks at every object in the process, tens of thousands after a model was loaded: 11 to
24 ms were measured once in one or two thousand rounds, as long as five rounds of a 135M model, and a short
answer that it falls into is a tenth slower. What is there once a model is loaded mostly stays, so it need not
be looked at.
"""

from __future__ import annotations

import gc


def freeze_heap() -> None:
    """Collect what is garbage now, and leave the rest out of later collections, of this whole process.

    After each model that is loaded. What was left out before is looked at again once: a model that was
    unloaded since is garbage by now. For programs of our own; in somebody else's it is theirs to decide
    (`gc.freeze`).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def thaw_heap() -> None:
    """Have later collections look at everything again: a model was unloaded, and parts of it, its tensors
    included, may be garbage that only they find.
    """
    gc.unfreeze()
