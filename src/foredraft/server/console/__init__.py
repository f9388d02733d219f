"""The console API under /console: what the page shows and changes, for scripts and the command line, too.

Reading needs a key that the server accepts; changing needs the admin (`access.py`).
"""
