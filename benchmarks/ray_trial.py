"""Replicas on Ray Serve behind one address: is every answer right if clients leave and a replica is killed?

Conversations of several turns, each of which begins with one of a few system prompts, through the official
clients of OpenAI and Anthropic; streamed and whole, greedy and with a seed. Each turn's history is what one
plain engine answered (a server without Ray and without drafts), so that every text can be compared with its.

1. The trial: some clients leave in the middle of an answer, and one replica gets SIGKILL once. A request that
   ends in an error is sent again, as a person would. Counted: wrong texts; requests that were stuck for more
   than `--longest` seconds; errors, by what the client was told; what still runs at the end; and what the
   front counted of requests whose replica was lost.
2. Routing: the same requests again without disconnects or kills, with the router by prefix and with
   Ray's own (of two replicas the less busy one). Shown: the share of prompt tokens that came from a cache.

The last line of output is one JSON object; the exit code is 1 if a text was wrong or a request stuck.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import anthropic
import httpx
import openai
import psutil

from common import model_path, parser, progress, run_benchmark
from foredraft.bench.workloads import shipped_prompts
from foredraft.errors import MissingDependencyError
from foredraft.installation import add_extra
from foredraft.server.settings import Limits, ModelSettings, ServerSettings
from server_common import gauges, serve_command, started

SYSTEMS = 6
"""System prompts that conversations begin with, each one used by as many."""

SYSTEM_CHARACTERS = 1500
TURNS = (3, 9)
SEEDED = {"temperature": 0.8, "seed": 11}
AT_ONCE = 8
"""Conversations that are open at once; each waits for its answer before it goes on."""

CONTEXT = 2048

AGAIN_S = 0.5
"""Seconds before a request is sent again that ended in an error."""

MOST_TRIES = 20
READY_S = 240.0


def main() -> None:
    """Run the trial and the comparison of routers."""
    arguments = parser(__doc__)
    arguments.add_argument("--requests", type=int, default=500)
    arguments.add_argument(
        "--compare", type=int, default=150, help="requests for each router; 0: no comparison"
    )
    arguments.add_argument(
        "--leaving", type=float, default=0.05, help="share of requests whose client leaves"
    )
    arguments.add_argument("--replicas", type=int, default=2)
    arguments.add_argument("--sequences", type=int, default=12, help="of each replica")
    arguments.add_argument(
        "--longest", type=float, default=120.0, help="seconds after which a request is stuck"
    )
    arguments.add_argument(
        "--minutes", type=float, default=40.0, help="the trial ends after that in any case"
    )
    arguments.add_argument("--seed", type=int, default=1)
    arguments.set_defaults(tokens=16, threads=1)
    args = arguments.parse_args()
    args.model = args.model or model_path(None)
    try:
        import ray  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "Ray is not installed.", hint=f"Install it: {add_extra('ray')}"
        ) from None
    report = asyncio.run(asyncio.wait_for(run(args), 60 * args.minutes))
    print(json.dumps(report))
    sys.exit(1 if report["trial"]["wrong"] or report["trial"]["stuck"] else 0)


async def run(args: Namespace) -> dict[str, Any]:
    """All parts, one after the other."""
    talks = conversations(args.seed, max(args.requests, args.compare), args.leaving)
    with started(plain_server(args)) as server:
        await asyncio.gather(*Pool(talks, AT_ONCE).each(lambda talk: plain(server.url, talk, args)))
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rt") as folder, ray_cluster(Path(folder), args) as url:
        cluster = Cluster(url, args)
        report["up_s"] = round(cluster.deploy("prefix"), 1)
        report["trial"] = await trial(cluster, first(talks, args.requests), args)
        show("trial", report["trial"])
        for router in ("prefix", "ray") if args.compare else ():
            cluster.deploy(router)
            report[router] = await routed(cluster, first(talks, args.compare), args)
            show(f"router: {router}", report[router])
    return report


def show(what: str, figures: Mapping[str, object]) -> None:
    print(f"{what}: " + ", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


# --- what is asked -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Turn:
    """A question. `text`: the plain engine's answer. `leaves`: the client goes before the answer is over."""

    question: str
    streamed: bool
    seeded: bool
    leaves: bool
    text: str = ""


@dataclass(slots=True)
class Talk:
    """A conversation, all through one API."""

    system: str
    anthropic: bool
    turns: list[Turn] = field(default_factory=list)

    def messages(self, turn: int) -> list[dict[str, str]]:
        """What is sent for this turn, without the system prompt."""
        said = [
            {"role": role, "content": text}
            for before in self.turns[:turn]
            for role, text in (("user", before.question), ("assistant", before.text))
        ]
        return [*said, {"role": "user", "content": self.turns[turn].question}]


def conversations(seed: int, requests: int, leaving: float) -> list[Talk]:
    """Conversations of `requests` requests or a few more; `leaving`: the share that disconnects."""
    rng = random.Random(seed)
    words = " ".join(turn for case in shipped_prompts() for turn in case.turns)
    systems = [words[at : at + SYSTEM_CHARACTERS] for at in rng.sample(range(0, 40_000, 2_000), SYSTEMS)]
    questions = [case.turns[0][:200] for case in shipped_prompts()]
    talks: list[Talk] = []
    while sum(len(talk.turns) for talk in talks) < requests:
        talk = Talk(systems[len(talks) % SYSTEMS], anthropic=rng.random() < 0.4)
        for _ in range(rng.randint(*TURNS)):
            seeded = not talk.anthropic and rng.random() < 0.5  # Anthropic's API has no seed
            talk.turns.append(
                Turn(rng.choice(questions), rng.random() < 0.6, seeded, leaves=rng.random() < leaving)
            )
        talks.append(talk)
    return talks


def first(talks: Sequence[Talk], requests: int) -> list[Talk]:
    """The first conversations, of `requests` requests in all; the last one may be cut short."""
    chosen: list[Talk] = []
    for talk in talks:
        turns = talk.turns[:requests]
        requests -= len(turns)
        if turns:
            chosen.append(Talk(talk.system, talk.anthropic, turns))
    return chosen


class Pool:
    """Works on `at_once` conversations at a time."""

    def __init__(self, talks: Sequence[Talk], at_once: int) -> None:
        self._left = iter(talks)
        self._at_once = at_once

    def each(self, work: Any) -> list[Any]:
        async def worker() -> None:
            for talk in self._left:
                await work(talk)

        return [worker() for _ in range(self._at_once)]


# --- clients -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """What came. `left`: the client went before the end."""

    text: str = ""
    prompt: int = 0
    cached: int = 0
    first_s: float = 0.0
    left: bool = False


class Clients:
    """Both clients of one address. They repeat nothing by themselves."""

    def __init__(self, url: str, args: Namespace) -> None:
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 10 * args.longest}
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", **options)
        self._anthropic = anthropic.AsyncAnthropic(base_url=url, **options)
        self._tokens = args.tokens

    async def ask(self, talk: Talk, turn: int, *, leave: bool = False) -> Answer:
        """The answer to a turn. Raises the client's errors."""
        asking = talk.turns[turn]
        answer, began = Answer(), time.perf_counter()
        pieces = (self._claude if talk.anthropic else self._chat)(talk, turn, asking, answer)
        try:
            async with asyncio.timeout(0.3 if leave and not asking.streamed else None):
                number = 0
                async for piece in pieces:
                    answer.first_s = answer.first_s or time.perf_counter() - began
                    answer.text += piece
                    number += 1
                    if leave and asking.streamed and number == 3:
                        answer.left = True
                        break
        except TimeoutError:
            answer.left = True
        finally:
            await pieces.aclose()
        return answer

    async def _chat(self, talk: Talk, turn: int, asking: Turn, answer: Answer) -> Any:
        messages = [{"role": "system", "content": talk.system}, *talk.messages(turn)]
        options: dict[str, Any] = dict(SEEDED) if asking.seeded else {"temperature": 0}
        options |= {"model": "model", "max_tokens": self._tokens, "messages": messages}
        if not asking.streamed:
            whole = await self._openai.chat.completions.create(**options)
            self._count(answer, whole.usage)
            yield whole.choices[0].message.content or ""
            return
        usage = {"include_usage": True}
        create: Any = self._openai.chat.completions.create
        stream = await create(**options, stream=True, stream_options=usage)
        async with stream:
            async for chunk in stream:
                self._count(answer, chunk.usage)
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    def _count(self, answer: Answer, usage: Any) -> None:
        if usage is not None:
            answer.prompt, answer.cached = usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

    async def _claude(self, talk: Talk, turn: int, asking: Turn, answer: Answer) -> Any:
        options: dict[str, Any] = {
            "model": "model",
            "max_tokens": self._tokens,
            "system": talk.system,
            "messages": talk.messages(turn),
            "extra_body": {"temperature": 0},  # not an argument of the client's
        }
        if not asking.streamed:
            whole = await self._anthropic.messages.create(**options)
        else:
            async with self._anthropic.messages.stream(**options) as stream:
                async for piece in stream.text_stream:
                    yield piece
                whole = await stream.get_final_message()
        answer.cached = whole.usage.cache_read_input_tokens or 0
        answer.prompt = whole.usage.input_tokens + answer.cached
        if not asking.streamed:
            yield "".join(block.text for block in whole.content if block.type == "text")


async def plain(url: str, talk: Talk, args: Namespace) -> None:
    """Note what the plain engine answers to each turn of a conversation."""
    clients = Clients(url, args)
    for number, turn in enumerate(talk.turns):
        turn.text = (await clients.ask(talk, number)).text


# --- the servers ---------------------------------------------------------------------------------------


def plain_server(args: Namespace) -> list[str]:
    """One engine, without drafts."""
    return serve_command(args.model, "off", threads=args.threads, sequences=args.sequences, context=CONTEXT)


@contextmanager
def ray_cluster(folder: Path, args: Namespace) -> Iterator[str]:
    """A cluster on this machine with as many processors as replicas need, and Serve's address."""
    import ray
    from ray import serve

    os.environ["FOREDRAFT_CACHE"] = str(folder / "cache")  # Ray's processes inherit it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(
        address="local",
        num_cpus=args.replicas * args.threads,
        _temp_dir=str(folder / "ray"),
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


@dataclass(slots=True)
class Cluster:
    """What runs on Ray."""

    url: str
    args: Namespace

    def deploy(self, router: str) -> float:
        """Serve the model with this router. Returns the seconds until it answered."""
        from ray import serve

        import foredraft.scale.ray as deployed

        began = time.perf_counter()
        deployed.ROUTER = ROUTERS[router]
        if "default" in serve.status().applications:
            serve.delete("default")
        serve.run(deployed.app(self._settings()))
        until = time.monotonic() + READY_S
        while len(self.processes()) < self.args.replicas or not self._answers():
            if time.monotonic() > until:
                raise SystemExit("The replicas did not start.")
            time.sleep(0.2)
        return time.perf_counter() - began

    def _settings(self) -> ServerSettings:
        args = self.args
        model = ModelSettings(
            path=args.model,
            threads=args.threads,
            sequences=args.sequences,
            context_length=CONTEXT,
            replicas=args.replicas,
        )
        return ServerSettings(
            models={"model": model}, metrics=True, limits=Limits(request_timeout_s=args.longest)
        )

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=10).is_success
        except httpx.HTTPError:
            return False

    def processes(self) -> list[psutil.Process]:
        """Those of this trial's replicas, no other cluster's."""
        named: list[psutil.Process] = []
        for process in psutil.Process().children(recursive=True):
            try:
                if "ServeReplica:" in (title := " ".join(process.cmdline())) and "model-" in title:
                    named.append(process)
            except psutil.Error:
                continue
        return named

    async def lost(self) -> dict[str, float]:
        """Requests whose replica ended: how many the front sent to another one, and how many failed."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as http:
            text = (await http.get("/metrics")).text
        return {
            then: float(value)
            for then, value in re.findall(r'replica_lost_total{.*then="(\w+)"} (\S+)', text)
        }

    async def wait_until_idle(self, seconds: float) -> float:
        """Wait until no replica answers a request, for `seconds` at most; the requests that still run."""
        until = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as http:
            while True:
                found = gauges((await http.get("/metrics")).text)
                busy = found.get("foredraft_num_requests_running", 0.0)
                if not busy or time.monotonic() > until:
                    return busy
                await asyncio.sleep(0.5)


ROUTERS = {
    "prefix": "foredraft.scale.prefix_router:PrefixRouter",
    "ray": "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter",
}


# --- the trial -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Count:
    """What came of the requests."""

    right: int = 0
    wrong: int = 0
    stuck: int = 0
    left: int = 0
    again: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)

    @property
    def over(self) -> int:
        """Requests that are over."""
        return self.right + self.wrong + self.stuck + self.left


async def trial(cluster: Cluster, talks: Sequence[Talk], args: Namespace) -> dict[str, Any]:
    """The first part."""
    total, count = sum(len(talk.turns) for talk in talks), Count()
    began = time.perf_counter()
    killing = asyncio.create_task(kill_in_the_middle(cluster, count, total))
    clients = Clients(cluster.url, args)
    await asyncio.gather(*Pool(talks, AT_ONCE).each(lambda talk: hold(clients, talk, count, args, total)))
    killed = await killing
    seconds = time.perf_counter() - began
    until = time.monotonic() + READY_S
    while len(cluster.processes()) < args.replicas and time.monotonic() < until:
        await asyncio.sleep(0.5)
    return {
        "requests": total,
        "right": count.right,
        "wrong": count.wrong,
        "stuck": count.stuck,
        "left": count.left,
        "errors": dict(count.errors),
        "sent_again": count.again,
        "killed": killed,
        "replicas_at_the_end": len(cluster.processes()),
        "front": await cluster.lost(),
        "still_running": await cluster.wait_until_idle(30),
        "seconds": round(seconds, 1),
    }


async def kill_in_the_middle(cluster: Cluster, count: Count, total: int) -> int:
    """Kill a replica when two fifths of the requests are over; returns how many were killed."""
    while count.over < 0.4 * total:
        await asyncio.sleep(0.05)
    victim = cluster.processes()[0]
    os.kill(victim.pid, signal.SIGKILL)
    return 1


async def hold(clients: Clients, talk: Talk, count: Count, args: Namespace, total: int) -> None:
    """Hold a conversation, whatever becomes of its requests."""
    for number, turn in enumerate(talk.turns):
        for attempt in range(MOST_TRIES):
            try:
                async with asyncio.timeout(args.longest):
                    answer = await clients.ask(talk, number, leave=turn.leaves and not attempt)
            except TimeoutError:
                count.stuck += 1
                break
            except (openai.APIError, anthropic.APIError) as error:
                count.errors[named(error)] += 1
                count.again += attempt == 0
                await asyncio.sleep(AGAIN_S)
                continue
            if answer.left:
                count.left += 1
            elif answer.text == turn.text:
                count.right += 1
                count.answers.append(answer)
            else:
                count.wrong += 1
                print(f"wrong: {talk.messages(number)[-1]}: {turn.text!r}: {answer.text!r}", file=sys.stderr)
            break
        else:
            count.stuck += 1
        if count.over % 50 == 0:
            progress(count.over, total, f"{count.wrong} wrong, {count.stuck} stuck, {dict(count.errors)}")


def named(error: openai.APIError | anthropic.APIError) -> str:
    """What a client is told: the status and the code, or the type of what broke the connection."""
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error", body)
    code = inner.get("code") or inner.get("type") if isinstance(inner, dict) else None
    status = getattr(error, "status_code", 200)  # 200: the answer had begun
    if not code:
        return f"unclear: {type(error).__name__}: {error}"
    return f"{'in the stream' if status == 200 else status} {code}"


# --- routers -------------------------------------------------------------------------------------------


async def routed(cluster: Cluster, talks: Sequence[Talk], args: Namespace) -> dict[str, Any]:
    """The second part, for the router that is there."""
    quiet = [
        Talk(
            talk.system,
            talk.anthropic,
            [Turn(it.question, it.streamed, it.seeded, leaves=False, text=it.text) for it in talk.turns],
        )
        for talk in talks
    ]
    total, count = sum(len(talk.turns) for talk in quiet), Count()
    clients, began = Clients(cluster.url, args), time.perf_counter()
    await asyncio.gather(*Pool(quiet, AT_ONCE).each(lambda talk: hold(clients, talk, count, args, total)))
    prompt = sum(answer.prompt for answer in count.answers)
    streamed = [answer.first_s for answer in count.answers]
    return {
        "requests": total,
        "right": count.right,
        "cached": round(sum(answer.cached for answer in count.answers) / max(prompt, 1), 3),
        "first_median_s": round(median(streamed), 2),
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    run_benchmark(main)
