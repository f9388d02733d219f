"""Numbers formatted for people."""

from __future__ import annotations


def size_text(size_bytes: int) -> str:
    """A size in decimal units, as in file managers and on the Hub: "2.5 MB"."""
    size, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """A count and its noun: "1 file", "2 files"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
