"""A process that serves one client of `foredraft rpc-server`, and ends with it: `python -m … ARGUMENTS`.

A process for each client, because llama.cpp's server serves one at a time, and ends where a client sends what
it does not expect.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

from foredraft.backends.llamacpp import binding, devices, kernels
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.rpc.library import library

READY = b"ready\n"
"""What the server is told before the address of a client."""


def main() -> None:
    """Arguments: the numbers of the socket that listens and of the file that is told who connected, threads,
    the cache folder of weights and that of Foredraft, and the llama.cpp library; empty for none.
    """
    listens, tells, threads = map(int, sys.argv[1:4])
    cache, own_cache, llama_library = sys.argv[4:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    binding.choose(Path(llama_library) if llama_library else None)
    folder = Path(own_cache) if own_cache else None
    native = library(folder)
    kernels.attach(folder)
    served = (ctypes.c_void_p * 16)(*served_devices()[:16])
    count = sum(1 for device in served if device)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)  # llama.cpp tells about itself there
    own = kernels.in_use()
    panels = own.native.handle.foredraft_buffer_type() if own else None
    os.write(tells, READY)
    native.serve(listens, tells, cache.encode() or None, threads, served, count, panels)


def served_devices() -> list[int]:
    """The pointers of the GPUs; of the processor if there are none."""
    found = list(
        zip(
            devices.devices(), map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count())), strict=True
        )
    )
    gpus = [pointer for device, pointer in found if device.kind == devices.GPU]
    return gpus or [pointer for device, pointer in found if device.kind == devices.KINDS[0]]


def _end_with_the_server() -> None:
    """Standard input is a pipe of the server, which is closed when that ends, however it does."""
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
