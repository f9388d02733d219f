"""All errors that Foredraft raises deliberately. No other exception should reach a user.

::

    ForedraftError
    ├── ConfigError                  a setting is wrong                    exit 2, HTTP 400
    │   ├── SpeculationStringError   an unknown drafter or key
    │   ├── SettingsConflictError    the settings file changed meanwhile   exit 2, HTTP 409
    │   └── RequestError             an impossible request (empty prompt, bad sampling value)
    │       ├── ContextLengthError   the prompt does not fit the context
    │       └── NoNextTokenError     the answer cannot go on within its constraint
    ├── ModelError                   the model cannot be used              exit 2, HTTP 400
    │   ├── ModelNotFoundError       no model of that path or name         exit 2, HTTP 404
    │   ├── ModelFormatError         not a model file, truncated, vocabulary only
    │   └── UnsupportedModelError    a valid file this backend cannot run
    ├── CapacityError                out of memory, sequences or KV cells  exit 2, HTTP 503
    │   ├── OutOfKVError             the KV cache is full
    │   └── QueueFullError           too many requests are waiting         exit 2, HTTP 429
    ├── AuthenticationError          no API key, or an unknown one         exit 2, HTTP 401
    ├── PermissionDeniedError        the key does not allow this           exit 2, HTTP 403
    ├── RateLimitError               too many requests with this key       exit 2, HTTP 429
    ├── DeadlineExceededError        the request took too long             exit 1, HTTP 504
    ├── MissingDependencyError       an extra is not installed             exit 2, HTTP 501
    ├── BackendError                 the backend failed                    exit 1, HTTP 500
    │   ├── NotNumbersError          its arithmetic overflowed
    │   └── HostLostError            another machine that computes for it is gone
    └── ChildError                   work in a child process failed        exit 1, HTTP 500
        ├── ChildDiedError           it crashed, or was killed
        ├── ChildTimeoutError        it took too long
        ├── ChildMemoryError         it ran out of memory
        └── ChildOutputError         its result is too large
"""

from __future__ import annotations

from typing import ClassVar


def printable(text: str) -> str:
    """Make untrusted text, such as metadata of a model file, safe for a terminal or log: unprintable
    characters, which could start a control sequence, are replaced. Newlines are kept.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def quoted(value: object) -> str:
    """A user's value for an error message: without escapes; true, false and null as in JSON."""
    if isinstance(value, str):
        return f"'{printable(''.join(' ' if letter.isspace() else letter for letter in value))}'"
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)


class ForedraftError(Exception):
    """Base of the tree: a message that says what is wrong and a hint that says what to do.

    `code` is a stable identifier for programs, `status` the HTTP status, `exit_code` the command line's.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ConfigError(ForedraftError):
    """A flag, option or configuration value is wrong. `setting`: its name, where it has one. `others`: what
    else is wrong of the same change, each with its setting.
    """

    code = "invalid_config"
    status = 400
    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, setting: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.setting = setting
        self.others: tuple[ConfigError, ...] = ()


class SettingsConflictError(ConfigError):
    """The settings file has changed since it was read; nothing was written."""

    code = "settings_conflict"
    status = 409


class SpeculationStringError(ConfigError):
    """The speculation string has an unknown drafter or key, or an invalid value."""

    code = "invalid_speculation"


class RequestError(ConfigError):
    """The request is invalid."""

    code = "invalid_request"


class ContextLengthError(RequestError):
    """The prompt, or the context asked for, is longer than the model allows."""

    code = "context_length_exceeded"


class NoNextTokenError(RequestError):
    """No next token is allowed: the constraint and the settings exclude all of them, or the constraint became
    too complex. The text generated so far stays valid.
    """

    code = "no_next_token"


class ModelError(ForedraftError):
    """The model cannot be used."""

    code = "model_error"
    status = 400
    exit_code = 2


class ModelNotFoundError(ModelError):
    """No model has this path or name."""

    code = "model_not_found"
    status = 404


class ModelFormatError(ModelError):
    """The file is not a usable model: wrong format, truncated, or without weights."""

    code = "model_format"


class UnsupportedModelError(ModelError):
    """A valid model file that this backend cannot run."""

    code = "model_unsupported"


class CapacityError(ForedraftError):
    """Not enough room: memory, sequences or KV cells."""

    code = "out_of_capacity"
    status = 503
    exit_code = 2


class OutOfKVError(CapacityError):
    """The KV cache has no room for the rows of this forward. Nothing was computed."""

    code = "out_of_kv"


class QueueFullError(CapacityError):
    """The queue is full. The request was not accepted; it can be sent again later."""

    code = "queue_full"
    status = 429


class AuthenticationError(ForedraftError):
    """The request has no API key, or an unknown one."""

    code = "invalid_api_key"
    status = 401
    exit_code = 2


class PermissionDeniedError(ForedraftError):
    """The API key is valid but does not allow this."""

    code = "permission_denied"
    status = 403
    exit_code = 2


class RateLimitError(ForedraftError):
    """An API key exceeds its rate limit. `retry_after`: seconds to wait before the next try."""

    code = "rate_limit_exceeded"
    status = 429
    exit_code = 2

    def __init__(self, message: str, *, retry_after: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class DeadlineExceededError(ForedraftError):
    """The request exceeded its time limit."""

    code = "deadline_exceeded"
    status = 504


class MissingDependencyError(ForedraftError):
    """An optional dependency is not installed; the hint is the command that installs it."""

    code = "missing_dependency"
    status = 501
    exit_code = 2


class BackendError(ForedraftError):
    """The backend failed in a way that is not the user's fault."""

    code = "backend_error"


class NotNumbersError(BackendError):
    """A model returned logits that are not numbers."""


class HostLostError(BackendError):
    """A machine that computes a part of the model is gone: the model has to be loaded again."""


class ChildError(ForedraftError):
    """Work in a child process failed. The caller translates it into an error of its own.

    `transient`: the cause lies outside the work, so a second try may succeed.
    """

    code = "child_error"
    transient = False


class ChildDiedError(ChildError):
    """The child crashed, or was killed from outside (`transient`). `last_words`: its last output, such as a
    failed assertion; may be empty.
    """

    code = "child_died"

    def __init__(self, message: str, *, last_words: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.last_words = last_words


class ChildTimeoutError(ChildError):
    """The child exceeded its time limit and was killed."""

    code = "child_timeout"


class ChildMemoryError(ChildError):
    """The child exceeded its memory limit."""

    code = "child_memory"


class ChildOutputError(ChildError):
    """The child's result exceeds the size limit."""

    code = "child_output"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
