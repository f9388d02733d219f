"""For the page's tests in a browser, as commands: small models, and the stand-in for the Hub as a process.

    python tests/page_files.py tiny FILE          a model of its own
    python tests/page_files.py draft FILE         one with the tokenizer of the default model, to draft for it
    python tests/page_files.py hub                answers until its standard input ends

The Hub prints its address. A line `hold BYTES` on its standard input lets every download to come wait after
so many bytes, and `go` lets them all go on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gguf

from foredraft.library import default_model
from gguf_factory import tiny_llama
from hub_server import running_hub

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY = "makers/Small-GGUF"
MARKUP = "makers/Small-<img src=x onerror=stolen=1>-GGUF"


def draft(path: Path) -> None:
    """Write a model of random weights whose tokenizer is the default model's."""
    tokenizer = [field for field in gguf.GGUFReader(_default()).fields.values() if _is_tokenizer(field)]
    vocab = next(len(field.data) for field in tokenizer if field.name == "tokenizer.ggml.tokens")

    def take_tokenizer(writer: gguf.GGUFWriter) -> None:
        for values in writer.kv_data:
            for name in [name for name in values if name.startswith("tokenizer.")]:
                del values[name]
        for field in tokenizer:
            kind = field.types[0]
            part = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, part)

    tiny_llama(
        path, vocab=vocab, layers=1, embd=32, heads=2, kv_heads=1, name="Tiny draft", edit=take_tokenizer
    )


def _is_tokenizer(field: gguf.ReaderField) -> bool:
    name: str = field.name
    return name.startswith("tokenizer.")


def _default() -> Path:
    found = default_model()
    assert found is not None
    return found


def hub() -> None:
    """Serve the default model's own file as a repository's, and one whose name is markup."""
    content = _default().read_bytes()
    with running_hub() as contents:
        contents.repositories = {
            REPOSITORY: {"Small-Q4_1.gguf": content, "Small-Q8_0.gguf": content[:-1] + b"\0"},
            MARKUP: {"Bold-Q4_1.gguf": content},
            "owner/gated": {"Gated-Q4_1.gguf": content},  # which the stand-in refuses
        }
        contents.downloads_of = {REPOSITORY: 1200}
        print(contents.endpoint, flush=True)
        for line in sys.stdin:
            word, _, value = line.partition(" ")
            if word.strip() == "go":
                contents.hold_after = None
                contents.go_on.set()
            else:
                contents.go_on.clear()
                contents.hold_after = int(value)


def main(words: Sequence[str]) -> None:
    if words[0] == "hub":
        hub()
    elif words[0] == "draft":
        draft(Path(words[1]))
    else:
        tiny_llama(Path(words[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
