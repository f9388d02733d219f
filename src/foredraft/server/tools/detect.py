"""Which dialect a model speaks, by what its chat template says: names of models and files are no evidence."""

from __future__ import annotations

import re
from typing import Final

from foredraft.server.tools.dialect import Dialect
from foredraft.server.tools.hermes import HERMES, OPEN
from foredraft.server.tools.llama3 import LLAMA3, PYTHON_TAG
from foredraft.server.tools.mistral import ARGS, MISTRAL, MISTRAL_NAMED, TOOL_CALLS

_IPYTHON: Final = re.compile(r"<\|start_header_id\|>ipython|['\"]ipython['\"]")


def dialect_for(chat_template: str) -> Dialect:
    """The dialect whose markers the template writes; Hermes if it writes none.

    `<tool_call>` comes first because fine-tunes of Llama and Mistral models bring it with them.
    """
    if OPEN in chat_template:
        return HERMES
    if TOOL_CALLS in chat_template:
        return MISTRAL_NAMED if ARGS in chat_template else MISTRAL
    if PYTHON_TAG in chat_template or _IPYTHON.search(chat_template):
        return LLAMA3
    return HERMES
