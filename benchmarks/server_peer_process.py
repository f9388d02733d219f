"""llama.cpp's server as xllamacpp embeds it, in a process of its own, run by the Python that has xllamacpp.

`python server_peer_process.py MODEL TYPE THREADS SLOTS CONTEXT`: TYPE is `none` or one of llama.cpp's
n-gram types, such as `ngram-map-k`; CONTEXT is that of one slot. Everything else stays at the defaults of
the package. Prints what was built, then `peer on URL` once it answers, and serves until it is ended.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module


def main() -> None:
    """Serve until the process is ended."""
    model, kind, threads, slots, context = sys.argv[1:]
    peer = import_module("xllamacpp")
    params = peer.CommonParams()
    params.model.path = model
    params.n_parallel = int(slots)
    params.n_ctx = int(context) * int(slots)
    params.verbosity = 1
    if int(threads):
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    name = f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"
    params.speculative.types = [getattr(peer.common_speculative_type, name)]
    server = peer.Server(params)
    print(f"xllamacpp {peer.__version__}: {peer.get_system_info()}")
    print(f"peer on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
