"""A pool of child processes for native or unbounded work on bytes that come from clients and model files.

What can crash, hang or eat memory is done there first: `pool.ChildPool` is the whole interface.
"""
