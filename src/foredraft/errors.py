"""Every error Foredraft raises on purpose. Nothing else should reach a user.

::

    ForedraftError
    ├── ConfigError                  what the user set is wrong            exit 2, HTTP 400
    │   ├── SpeculationStringError   an unknown drafter or key
    │   └── RequestError             an impossible request (empty prompt, bad sampling value)
    │       ├── ContextLengthError   the prompt does not fit the context
    │       └── NoNextTokenError     the answer cannot go on within its constraint
    ├── ModelError                   the model cannot be used              exit 2, HTTP 400
    │   ├── ModelNotFoundError       no such file or name                  exit 2, HTTP 404
    │   ├── ModelFormatError         not a model file, truncated, vocabulary only
    │   └── UnsupportedModelError    a valid file this backend cannot run
    ├── CapacityError                no room left                          exit 2, HTTP 503
    │   ├── OutOfKVError             the KV cache is full
    │   └── QueueFullError           too many requests are waiting         exit 2, HTTP 429
    ├── AuthenticationError          no API key, or not one of ours        exit 2, HTTP 401
    ├── PermissionDeniedError        this caller may not do that           exit 2, HTTP 403
    ├── RateLimitError               this key asks too often               exit 2, HTTP 429
    ├── DeadlineExceededError        the request took too long             exit 1, HTTP 504
    ├── MissingDependencyError       an extra is not installed             exit 2, HTTP 501
    ├── BackendError                 the backend failed                    exit 1, HTTP 500
    └── ChildError                   work in a child process failed        exit 1, HTTP 500
        ├── ChildDiedError           it crashed, or was ended
        ├── ChildTimeoutError        it took too long
        ├── ChildMemoryError         it ran out of memory
        └── ChildOutputError         its result is too large
"""

from __future__ import annotations

from typing import ClassVar


def printable(text: str) -> str:
    """A text for a terminal or a log that may come from a model's file: characters that cannot be seen, which
    may begin a control sequence, are replaced. Lines stay lines.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def quoted(value: object) -> str:
    """A value that somebody wrote, for a message: no escapes, and true, false and null as JSON has them."""
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
    """A flag, option or configuration value is wrong."""

    code = "invalid_config"
    status = 400
    exit_code = 2


class SpeculationStringError(ConfigError):
    """The speculation string names an unknown drafter or key, or a value that does not fit."""

    code = "invalid_speculation"


class RequestError(ConfigError):
    """The request cannot be carried out as it stands."""

    code = "invalid_request"


class ContextLengthError(RequestError):
    """The prompt, or the context asked for, is longer than the model allows."""

    code = "context_length_exceeded"


class NoNextTokenError(RequestError):
    """No token may come next: the constraint and the settings together leave none, or the constraint became
    too complex. What was generated until then stands.
    """

    code = "no_next_token"


class ModelError(ForedraftError):
    """The model cannot be used."""

    code = "model_error"
    status = 400
    exit_code = 2


class ModelNotFoundError(ModelError):
    """No model of this path or name."""

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
    """As many requests are waiting as may. This one was not taken; it can be sent again later."""

    code = "queue_full"
    status = 429


class AuthenticationError(ForedraftError):
    """The request carries no API key, or one that is not known here."""

    code = "invalid_api_key"
    status = 401
    exit_code = 2


class PermissionDeniedError(ForedraftError):
    """The caller is known and may not do this."""

    code = "permission_denied"
    status = 403
    exit_code = 2


class RateLimitError(ForedraftError):
    """A key sends more requests than it may. `retry_after`: in how many seconds to try again."""

    code = "rate_limit_exceeded"
    status = 429
    exit_code = 2

    def __init__(self, message: str, *, retry_after: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class DeadlineExceededError(ForedraftError):
    """The request took longer than it was given."""

    code = "deadline_exceeded"
    status = 504


class MissingDependencyError(ForedraftError):
    """An optional dependency is not installed; the hint holds the exact `pip install` line."""

    code = "missing_dependency"
    status = 501
    exit_code = 2


class BackendError(ForedraftError):
    """The backend failed in a way that is not the user's fault."""

    code = "backend_error"


class ChildError(ForedraftError):
    """Work that was carried out in a child process failed. Who had it carried out says what that means.

    `transient`: it was not the work's own doing, so the same may succeed later.
    """

    code = "child_error"
    transient = False


class ChildDiedError(ChildError):
    """The child crashed, or was ended from outside (`transient`). `last_words`: what it printed last, such as
    a failed assertion; may be empty.
    """

    code = "child_died"

    def __init__(self, message: str, *, last_words: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.last_words = last_words


class ChildTimeoutError(ChildError):
    """The child took longer than it may, and was killed."""

    code = "child_timeout"


class ChildMemoryError(ChildError):
    """The child needed more memory than it may have."""

    code = "child_memory"


class ChildOutputError(ChildError):
    """The child's result is larger than it may be."""

    code = "child_output"


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
