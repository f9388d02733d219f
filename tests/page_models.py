"""Writes small models for the page's tests in a browser, and the settings of a server of them:

    python tests/page_models.py FOLDER

`thinking` opens every answer with a thought, which a budget ends; both are made of a few letters. `seeing`
says whatever it says about pictures.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gguf_factory import tiny_llama
from gguf_tokenizer import FIRST_BYTE
from gguf_vision import qwen2vl
from thinking_cases import DEEPSEEK

VOCAB = 384
SAID = b"\nhum, ad"
"""Each letter is followed by the next, and the last by the first."""

SETTINGS = """\
default_model = "thinking"

[models.thinking]
path = "thinking.gguf"
threads = 1

[models.thinking.sampling]
temperature = 0.0
max_tokens = 60
reasoning_budget = 16

[models.seeing]
path = "seeing/tiny-qwen2vl.gguf"
threads = 1

[models.seeing.sampling]
temperature = 0.0
max_tokens = 24
"""


def write_all(folder: Path) -> None:
    """The models and `settings.toml`."""
    follows = list(range(VOCAB))
    for letter, after in zip(SAID, SAID[1:] + SAID[:1], strict=True):
        follows[FIRST_BYTE + letter] = FIRST_BYTE + after
    tiny_llama(
        folder / "thinking.gguf",
        vocab=VOCAB,
        layers=4,
        mixing=0.0,
        ctx_train=2048,
        chat_template=DEEPSEEK,
        follows=follows,
    )
    qwen2vl(folder / "seeing")
    (folder / "settings.toml").write_text(SETTINGS)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
