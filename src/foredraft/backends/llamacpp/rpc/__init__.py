"""A GGUF whose layers are computed by several machines: llama.cpp's RPC backend, as client and as server."""
