"""Translates errors of the Hub's library and of the system into ForedraftErrors."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ForedraftError,
    ModelError,
    ModelNotFoundError,
    quoted,
)
from foredraft.registry import missing_dependency

_ERRNO = re.compile(r"\[Errno -?\d+\] ")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


KEPT = "What has arrived is kept, and the same command continues."


@contextmanager
def translated(repository: str, *, purpose: str = "Pulling models", again: str = KEPT) -> Iterator[None]:
    """Translate errors of the Hub's library and of the system into ForedraftErrors. `purpose`: what needs
    that library; `again`: advice for another try.
    """
    try:
        from huggingface_hub import errors
    except ImportError as exc:
        raise missing_dependency("huggingface_hub", purpose) from exc
    try:
        yield
    except ForedraftError:
        raise
    except errors.GatedRepoError as exc:
        raise ModelError(
            f"{repository} is gated: its owner gives access on request.",
            hint=f"Request access at https://huggingface.co/{repository}, then log in with 'hf auth login'.",
        ) from exc
    except errors.RepositoryNotFoundError as exc:
        raise ModelNotFoundError(
            f"There is no repository {repository} on the Hub, or it is private.",
            hint="Check the spelling; for a private repository, log in with 'hf auth login'.",
        ) from exc
    except errors.HFValidationError as exc:
        raise ConfigError(f"{quoted(repository)} is not the name of a repository.", hint=str(exc)) from exc
    except errors.OfflineModeIsEnabled as exc:
        raise BackendError("The Hub library is in offline mode.", hint="Unset HF_HUB_OFFLINE.") from exc
    except errors.HfHubHTTPError as exc:
        raise BackendError(
            f"The Hub refused the request: HTTP {exc.response.status_code} for {repository}.",
            hint=f"Try again later. {again}".rstrip(),
        ) from exc
    except transport_error() as exc:
        reason = _ERRNO.sub("", str(exc)).rstrip(".") or type(exc).__name__
        raise BackendError(
            f"The connection to the Hub failed: {reason}.",
            hint=f"Check the network. {again}".rstrip(),
        ) from exc
    except OSError as exc:
        raise _system_error(exc) from exc


def transport_error() -> type[Exception]:
    """The base class of the errors of the Hub library's HTTP client: httpx in its version 1, httpx2 in 2."""
    from huggingface_hub import errors

    return errors.HfHubHTTPError.__bases__[0]


def _system_error(error: OSError) -> ForedraftError:
    where = error.filename or "the models folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(where, os.strerror(error.errno))
    return ConfigError(
        f"Cannot write to {where}: {error.strerror or error}.",
        hint="Choose another FOREDRAFT_CACHE folder.",
    )


def disk_full(where: Path | str, why: str) -> CapacityError:
    """The error for a full disk."""
    return CapacityError(
        f"The disk of {where} is full: {why}.",
        hint="Free some space and run the same command again: it continues where it stopped.",
    )
