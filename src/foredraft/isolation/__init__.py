"""A pool of child processes for native or unbounded work on data from clients and model files.

Work that can crash, hang or exhaust memory runs there; `pool.ChildPool` is the whole interface.
"""
