"""Requests that run and that have ended, and the server's log."""

from __future__ import annotations

from typing import Literal

from foredraft.server.console.shapes import Change, Grown, Reply


class DraftedBy(Reply):
    """Tokens of one drafter."""

    drafted: int
    accepted: int


class Texts(Reply):
    """What was asked, as the model gets it, and answered: of several answers the first. Each is cut at 20,000
    characters, in a list at 1,000.
    """

    prompt: str
    answer: str


class RequestRow(Reply):
    """A request. `id`: its x-request-id. `at`: Unix time of its arrival. `key`: "" until it is known whose it
    is. `state`: "preparing" until it is in the engine's queue. `api`: "chat", "completions", "responses",
    "messages", or the path of one that was refused. `prompt_tokens` and `completion_tokens` are of all
    answers; `first_token_ms` (from the time it was in the queue) and `finish` of the first.
    `acceptance`: accepted ÷ drafted. `not_drafting`: why nothing was drafted, with the code of `reason_codes`
    if it is a known one. `error`: why it was refused, broke off or was stopped, with
    a `code` where there is one. `texts`: only for the admin,
    and only of requests made while recording was on.
    """

    id: str
    at: float
    key: str
    model: str | None
    api: str
    state: Literal["preparing", "waiting", "running", "done"]
    status: int | None
    duration_ms: float
    answers: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int
    first_token_ms: float | None
    tokens_per_s: float | None
    acceptance: float | None
    speedup: float | None
    drafters: dict[str, DraftedBy]
    finish: str | None
    not_drafting: str | None
    not_drafting_code: str | None
    error: str | None
    code: str | None
    texts: Texts | None


class Requests(Grown):
    """The newest first. Callers without the admin key see their own key's only. `ended`: how many have ended
    since the server started. `running` is all of those also where `finished` is not `whole`.
    """

    running: list[RequestRow]
    finished: list[RequestRow]
    recording: bool
    ended: int


class Recording(Change):
    """Whether texts of requests are kept, in memory only, until it is switched off or the server ends."""

    on: bool


class LogLine(Reply):
    """One line of the server's log. `number` grows by one for each."""

    number: int
    at: float
    level: Literal["info", "warning", "error"]
    text: str


class Log(Grown):
    """The oldest first."""

    lines: list[LogLine]
