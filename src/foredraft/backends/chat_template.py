"""Chat templates: the model's own Jinja template, run in a sandbox, with the helpers templates rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from foredraft.errors import RequestError
from foredraft.types import Message


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Not Jinja's own tojson, which escapes HTML characters: models were trained on the plain text.
    options.pop("ensure_ascii", None)
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


class ChatTemplate:
    """A compiled chat template. `source` None: the model has none, and `render` says so."""

    def __init__(self, source: str | None, *, bos_token: str, eos_token: str) -> None:
        self._source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled: jinja2.Template | None = None

    def _template(self) -> jinja2.Template:
        if self._source is None:
            raise RequestError(
                "This model has no chat template, so it cannot take messages.",
                hint="Give it plain text instead: 'foredraft run --raw', or generate('text') in Python.",
            )
        if self._compiled is None:
            environment = ImmutableSandboxedEnvironment(
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            environment.filters["tojson"] = _to_json
            environment.globals["raise_exception"] = _raise_exception
            environment.globals["strftime_now"] = _strftime_now
            self._compiled = environment.from_string(self._source)
        return self._compiled

    def render(self, messages: Sequence[Message], **variables: object) -> str:
        """The prompt text. Raises RequestError if there is no template or it rejects the messages."""
        if not messages:
            raise RequestError("There are no messages.", hint="Send at least one message.")
        try:
            text = self._template().render(messages=list(messages), **self._tokens, **variables)
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is a program, and may fail in any way
            raise RequestError(f"The model's chat template rejects these messages: {error}") from None
        return str(text)
