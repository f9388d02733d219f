"""The server under load: is every stream's text the one it has alone, and is `auto` not behind `off`?

Two servers of the same model on this machine, one with `--speculate off`, one with `auto`. At each level so
many clients stream greedy answers to prompts for `--seconds`, first from one server, then from the other.
Every text is compared with the prompt's answer alone. With `--leave` a share of the answers is left at
random; afterwards no request may be left over. /health is asked all the while. Exit code 1 if a text differs,
a request fails, or one is left over.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles

import httpx

from common import parser, progress
from foretoken.bench.workloads import load_prompts, select

SETTINGS = ("off", "auto")


@dataclass(slots=True)
class Tally:
    """What the clients of one level saw. Times in milliseconds."""

    tokens: int = 0
    answers: int = 0
    left: int = 0
    different: int = 0
    errors: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def row(self) -> dict[str, float]:
        return {
            "tokens_per_second": round(self.tokens / self.seconds, 1),
            "answers": self.answers,
            "left": self.left,
            "different": self.different,
            "errors": len(self.errors),
            "first_p50_ms": _percentile(self.first, 50),
            "first_p99_ms": _percentile(self.first, 99),
            "gap_p50_ms": _percentile(self.gaps, 50),
            "gap_p99_ms": _percentile(self.gaps, 99),
            "health_p99_ms": _percentile(self.health, 99),
        }


def _percentile(values: Sequence[float], percent: int) -> float:
    return round(quantiles(values, n=100)[percent - 1], 1) if len(values) > 1 else float("nan")


@contextmanager
def server(model: str | None, setting: str, threads: int, sequences: int) -> Iterator[str]:
    """The URL of a server of its own process."""
    command = [sys.executable, "-m", "foretoken", "serve", *([model] if model else []), "--port", "0"]
    command += ["--speculate", setting, "-t", str(threads), "-np", str(sequences), "--ctx", "2048"]
    command += ["--no-remember", "--log-format", "off"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = ""
        while "http://" not in line:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
        yield line.strip().rsplit(" ", 1)[1].removesuffix("/v1")
    finally:
        process.terminate()
        process.wait(30)


async def answer(
    client: httpx.AsyncClient, prompt: str, tokens: int, tally: Tally, *, leave: bool
) -> str | None:
    """One streamed answer; None if it was left."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, last = "", time.perf_counter()
    first = True
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            tally.errors.append((await reply.aread()).decode()[:200])
            return None
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                tally.errors.append(chunk["error"]["message"])
                return None
            piece = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            if chunk.get("usage"):
                tally.tokens += chunk["usage"]["completion_tokens"]
            if piece:
                now = time.perf_counter()
                (tally.first if first else tally.gaps).append(1e3 * (now - last))
                first, last = False, now
                text += piece
            if leave and len(text) > 40:
                tally.left += 1
                return None
    return text


async def level(
    url: str, prompts: Sequence[str], alone: Sequence[str], clients: int, args: object, rng: random.Random
) -> Tally:
    """`clients` clients for the time given."""
    seconds, tokens, share = args.seconds, args.tokens, args.leave  # type: ignore[attr-defined]
    tally, began = Tally(), time.perf_counter()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one() -> None:
            while time.perf_counter() - began < seconds:
                at = rng.randrange(len(prompts))
                text = await answer(client, prompts[at], tokens, tally, leave=rng.random() < share)
                if text is not None:
                    tally.answers += 1
                    tally.different += text != alone[at]

        async def watch() -> None:
            while True:
                asked = time.perf_counter()
                await client.get("/health")
                tally.health.append(1e3 * (time.perf_counter() - asked))
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(one() for _ in range(clients)))
        tally.seconds = time.perf_counter() - began
        watching.cancel()
        for _ in range(50):  # requests of clients that left end before the next forward
            if not await running(client):
                break
            await asyncio.sleep(0.1)
        else:
            tally.errors.append("requests were left over")
    return tally


async def running(client: httpx.AsyncClient) -> bool:
    lines = (await client.get("/metrics")).text.splitlines()
    return any(line.startswith("foretoken_num_requests{") and not line.endswith(" 0.0") for line in lines)


async def answers_alone(url: str, prompts: Sequence[str], tokens: int) -> list[str]:
    tally, found = Tally(), []
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for number, prompt in enumerate(prompts):
            found.append(await answer(client, prompt, tokens, tally, leave=False) or "")
            progress(number + 1, len(prompts), "alone")
    return found


def main() -> None:
    """Run all levels; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--levels", type=int, nargs="+", default=[1, 4, 8, 16])
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--leave", type=float, default=0.0, help="share of answers that are left early")
    args = arguments.parse_args()
    prompts = [case.turns[0] for case in select(load_prompts(args.prompts), limit=args.limit or 24)]
    report: dict[str, dict[str, float]] = {}
    failed = 0
    with (
        server(args.model, "off", args.threads, max(args.levels)) as plain,
        server(args.model, "auto", args.threads, max(args.levels)) as drafting,
    ):
        alone = asyncio.run(answers_alone(plain, prompts, args.tokens))
        for clients in args.levels:
            for setting, url in zip(SETTINGS, (plain, drafting), strict=True):
                tally = asyncio.run(level(url, prompts, alone, clients, args, random.Random(clients)))
                failed += tally.different + len(tally.errors)
                report[f"{setting} x{clients}"] = tally.row()
                print(f"{setting} x{clients}: {tally.row()}", *tally.errors[:3], flush=True)
    print(json.dumps({"failed": failed, "levels": report}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
