"""Bases of the console's bodies."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """What the console answers. Every field is always there, so that a reader needs no defaults."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Grown(Reply):
    """What a stream of events sends in parts. `whole`: all of it is here, as a path answers and a stream
    begins; False, in a stream only: what has come or changed since the event before.
    """

    whole: bool = True


class Numbered(Reply):
    """What is asked for and streamed. `revision` is higher the newer it is, also where it says the same as
    before: a reader can tell an answer that an event has overtaken, and a stream sends a state that came
    back.
    """

    revision: int = 0


Found = TypeVar("Found", bound=Reply)


def numbered(reply: Found, revision: int) -> Found:
    """With this revision, if it has one."""
    return reply.model_copy(update={"revision": revision}) if isinstance(reply, Numbered) else reply


class Change(BaseModel):
    """What the console is sent. An unknown field is an error: a misspelt one must not count as left out."""

    model_config = ConfigDict(extra="forbid", strict=True)
