"""Another server on the same prompts: a client of any OpenAI-compatible /v1/chat/completions.

    python -m lab.peers MODEL --against http://127.0.0.1:8080

It answers every prompt in turns with `off` and `auto`. Use the same model file, the same number of threads
and builds for the same processor on both sides. Texts are compared, too; that is information: another
program's arithmetic is not ours.

llama.cpp's server, and those that speak its dialect, end a stream with `timings`: their own clock, and what
was drafted and accepted. Its clock for decoding begins with the first token, as ours does, and the end token
counts, as with us. Without them the clock is ours, from the first piece of text to the last, and the number
of tokens is that of `usage`, or of the pieces where the server does not say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import PurePath
from time import perf_counter
from typing import Any

import httpx
from rich.console import Console

from foredraft.bench.figures import overall
from foredraft.bench.report import live_report
from foredraft.bench.report_text import report_text
from foredraft.bench.results import Row, Sample
from foredraft.bench.sides import EngineSide, Messages, Side
from foredraft.config import AUTO, OFF
from foredraft.errors import BackendError, ConfigError, ContextLengthError, ForedraftError
from foredraft.types import SamplingParams
from lab.live import arguments, cases, engines, measured, run

CONNECT_SECONDS = 5.0
READ_SECONDS = 600.0
"""Between two pieces: a long prompt on a slow machine takes minutes before the first."""

_QUOTED = 300
_FORBIDDEN = (401, 403)
_TOO_LONG = ("exceed_context_size_error", "context_length_exceeded")  # llama.cpp's, and OpenAI's and ours
_OWNERS_WITH_TRUNCATION = ("llamacpp", "vllm", "foredraft")


class ServerSide:
    """A server at `url`, with or without "/v1". `model` "" is the first one that it lists.

    Raises ConfigError or BackendError for a server that is not there or is not
    one of this kind.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        model: str = "",
        api_key: str = "",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.url = _base(url)
        self.name = name or self.url.removesuffix("/v1")
        self.model = model
        self._clock = clock
        self._client: httpx.Client = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        )
        try:
            self.model = self.model or self._first_model()
        except BaseException:
            self.close()
            raise

    @property
    def about(self) -> str:
        """Where it is and what it runs. llama.cpp's server names a model by its whole path."""
        return f"{self.url}, model {PurePath(self.model).name or self.model}"

    @cached_property
    def _truncates(self) -> bool:
        """Whether it is one that knows `top_k` and `min_p`; others refuse fields they do not know."""
        return any(model.get("owned_by") in _OWNERS_WITH_TRUNCATION for model in self._models())

    def restart(self) -> None:
        """A server keeps what it has learnt: that is its own business."""

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        """Stream an answer and time it. Raises ContextLengthError, ConfigError, BackendError."""
        body = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling(params),
        }
        body = {key: value for key, value in body.items() if value is not None}
        received = Received()
        with self._sent("POST", "/chat/completions", body) as response:
            for chunk in self._chunks(response):
                now = self._clock()
                try:
                    received.take(chunk, now)
                except (AttributeError, TypeError):
                    raise self._strange(f"it sent {json.dumps(chunk)[:_QUOTED]}") from None
        if not received.chunks:
            raise self._strange("it sent no events")
        try:
            return received.sample()
        except (AttributeError, TypeError, ValueError):
            raise self._strange("its timings or usage are not numbers") from None

    def close(self) -> None:
        """End the connection. May be called twice."""
        self._client.close()

    def _sampling(self, params: SamplingParams) -> dict[str, float]:
        """How the distribution is truncated: llama.cpp's server does so unless it is told not to."""
        if params.temperature <= 0:
            return {}
        further = {"top_k": params.top_k, "min_p": params.min_p} if self._truncates else {}
        return {"top_p": params.top_p, **further}

    def _first_model(self) -> str:
        return str(self._models()[0]["id"])

    def _models(self) -> Sequence[Mapping[str, Any]]:
        """What it lists: at least one."""
        with self._sent("GET", "/models") as response:
            response.read()
            try:
                models = [{**model, "id": model["id"]} for model in response.json()["data"]]
            except (ValueError, LookupError, TypeError):
                models = []
        if not models:
            raise self._strange("its /v1/models lists no model")
        return models

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> Iterator[httpx.Response]:
        """The response to a request, its status checked; httpx's errors become ours."""
        try:
            with self._client.stream(method, self.url + path, json=body) as response:
                if not response.is_success:
                    response.read()
                    raise self._refused(response.status_code, response.text)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ConfigError(
                f"The server at {self.url} cannot be reached: {error}.",
                hint="Is it running? The address is like http://127.0.0.1:8080.",
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigError(
                f"{self.url!r} is not the address of a server: {error}",
                hint="Write it like http://127.0.0.1:8080.",
            ) from None
        except httpx.HTTPError as error:
            raise BackendError(
                f"The connection to {self.url} failed: {error or type(error).__name__}."
            ) from None

    def _chunks(self, response: httpx.Response) -> Iterator[Mapping[str, Any]]:
        """The JSON objects of a stream of server-sent events."""
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            try:
                chunk = json.loads(data)
            except json.JSONDecodeError:
                raise self._strange(f"it sent {data[:_QUOTED]!r}") from None
            if not isinstance(chunk, dict):
                raise self._strange(f"it sent {data[:_QUOTED]!r}")
            if chunk.get("error"):
                raise BackendError(f"The server at {self.url} failed: {_message(data)}")
            yield chunk

    def _refused(self, status: int, text: str) -> ForedraftError:
        message = f"The server at {self.url} answered with status {status}: {_message(text)}"
        if any(f'"{code}"' in text for code in _TOO_LONG):
            return ContextLengthError(message, hint="Give that server a larger context.")
        if status >= 500:
            return BackendError(message)
        if status in _FORBIDDEN:
            return ConfigError(message, hint="Give its key: --api-key.")
        if not self.model:
            return ConfigError(message, hint="Is it an OpenAI-compatible server?")
        return ConfigError(message, hint=f"The model was {self.model!r}; --against-model names another.")

    def _strange(self, what: str) -> BackendError:
        return BackendError(
            f"The server at {self.url} does not answer like an OpenAI-compatible one: {what}."
        )


class Received:
    """What has come of a streamed answer so far."""

    def __init__(self) -> None:
        self.chunks = 0
        self._pieces: list[str] = []
        self._first = self._last = 0.0
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def take(self, chunk: Mapping[str, Any], now: float) -> None:
        """A chunk that arrived at `now`, in seconds."""
        self.chunks += 1
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            # Models that think aloud send that apart; it is text that was generated all the same.
            piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
            if piece:
                self._first = self._first if self._pieces else now
                self._last = now
                self._pieces.append(piece)

    def sample(self) -> Sample:
        """The answer. What the server says counts more than what was seen from here."""
        timings, usage = self._timings, self._usage
        count = int(timings.get("predicted_n") or usage.get("completion_tokens") or len(self._pieces))
        accepted = int(timings.get("draft_n_accepted") or 0)
        drafted = int(timings.get("draft_n") or 0)
        return Sample(
            text="".join(self._pieces),
            count=count,
            decode_ms=self._decode_ms(count),
            prompt_tokens=int(usage.get("prompt_tokens") or 0) or _prompt_tokens(timings),
            prompt_ms=float(timings.get("prompt_ms") or 0.0),
            # Every round commits what it accepted and one token more; the first token is the prompt's.
            rounds=max(0, count - 1 - accepted) if "predicted_n" in timings else 0,
            drafted=drafted,
            accepted=accepted,
        )

    def _decode_ms(self, count: int) -> float:
        if self._timings.get("predicted_ms"):
            return float(self._timings["predicted_ms"])
        if self._timings.get("predicted_per_second"):
            return 1e3 * count / float(self._timings["predicted_per_second"])
        return 1e3 * (self._last - self._first)


def _prompt_tokens(timings: Mapping[str, Any]) -> int:
    """Those that were read, and those that llama.cpp's server found in its cache."""
    return int(timings.get("prompt_n") or 0) + int(timings.get("cache_n") or 0)


def _base(url: str) -> str:
    """The address up to and including /v1."""
    url = url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
    return f"{url}/v1"


def _message(text: str) -> str:
    """What an error's body says, in whichever of the usual forms."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if isinstance(body, dict):
        inner = body.get("error") or body.get("detail") or body.get("message") or body
        inner = inner.get("message") or inner if isinstance(inner, dict) else inner
        text = inner if isinstance(inner, str) else json.dumps(inner)
    return text.strip()[:_QUOTED] or "no reason given"


def server_notes(rows: Sequence[Row], server: str, baseline: str) -> list[str]:
    """Notes on the side `server`. With several passes the first one counts."""
    by_prompt: dict[str, dict[str, Sample]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, {}).setdefault(row.setting, row.sample)
    pairs = {
        prompt: (answers[server], answers[baseline])
        for prompt, answers in by_prompt.items()
        if server in answers and baseline in answers
    }
    notes = []
    different = sum(not theirs.same_as(ours) for theirs, ours in pairs.values())
    if different:
        notes.append(
            f"{server}: {different} of {len(pairs)} texts are not those of {baseline}. Another program's "
            "arithmetic and random numbers are its own, and one token that differs changes all after it. "
            "That is no error of either."
        )
    longer = [
        f"{prompt} has {theirs.prompt_tokens} tokens there and {ours.prompt_tokens} here"
        for prompt, (theirs, ours) in pairs.items()
        if theirs.prompt_tokens and theirs.prompt_tokens != ours.prompt_tokens
    ]
    if longer:
        notes.append(
            f"{server}: its prompts are not the same ({longer[0]}). Is it the same model and chat template? "
            "If not, the rates cannot be compared."
        )
    return notes


def main() -> None:
    """Measure, and print the tables and the JSON line."""
    parser = arguments(__doc__)
    parser.add_argument("--against", metavar="URL", required=True)
    parser.add_argument("--against-model", default="", help="the first it lists if absent")
    parser.add_argument("--api-key", default="")
    args = parser.parse_args()
    with engines(args, [OFF, AUTO]) as loaded:
        server = ServerSide(args.against, model=args.against_model, api_key=args.api_key)
        try:
            sides: list[Side] = [*(EngineSide(*one) for one in loaded.items()), server]
            rows = list(measured(args, sides, cases(args)))
        finally:
            server.close()
    notes = server_notes(rows, server.name, OFF)
    about = {server.name: server.about}
    report = live_report(rows, title="Beside a server", baseline=OFF, about=about, notes=notes)
    Console().print(report_text(report))
    print(json.dumps({it.setting: it.tokens_per_second for it in overall(report)}))


if __name__ == "__main__":
    run(main)
