"""How long one client's body makes another client's stream wait.

A client streams an answer all the time, in a process of its own that writes down when each piece came.
Another sends each hostile body in turn: lists, texts, stop strings and predictions as large as the server
lets in, or larger; and connections that send without end. For each is printed what the server answered, how
long that took, the longest gap between two pieces of the stream, and that gap divided by the longest one
without other clients. Pieces cross over every 50 ms (server/frames.py): that is the least there is.

Run it on an idle machine: gaps of a busy one say nothing. A large model has long gaps of its own, in
which stalls hide. Exit code 1 if something that was accepted made the stream wait longer than `--most`
milliseconds.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from common import model_path, run_benchmark
from server_common import check_server, serve_command, started, table

ALONE_S = 5.0
"""How long the stream is watched without other clients."""

AFTER_S = 1.0
"""And after a body was answered: its answer runs on while the server frees what it held."""

USER = {"role": "user", "content": "Count the lamps along the pier."}
CHAT = "/v1/chat/completions"
MILLION = 1_000_000


# --- the client that streams ---------------------------------------------------------------------------


def read(url: str) -> None:
    """Stream one answer after the other, and print when each piece came, without end."""
    body = {"messages": [USER], "stream": True, "ignore_eos": True, "temperature": 1, "max_tokens": 4000}
    with httpx.Client(timeout=None) as client:
        while True:
            with client.stream("POST", f"{url}{CHAT}", json=body) as reply:
                for _ in reply.iter_raw():
                    print(time.monotonic(), flush=True)
            print("-", flush=True)  # the pause between two answers is no gap


class Stream:
    """The moments at which pieces came."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.moments: list[float | None] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.moments.append(None if line.startswith("-") else float(line))

    def longest(self, begin: float, end: float) -> float:
        """Milliseconds of the longest gap that lies between two moments, or reaches into them."""
        gaps = [0.0]
        for before, after in zip(self.moments[:-1], self.moments[1:], strict=True):
            if before is not None and after is not None and after > begin and before < end:
                gaps.append(after - before)
        return 1e3 * max(gaps)


@contextmanager
def streaming(url: str) -> Iterator[Stream]:
    """Another process reads a stream of this server meanwhile."""
    command = [sys.executable, __file__, "--read", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Stream(process)
    finally:
        process.kill()
        process.wait()


# --- what the other one sends --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hostile:
    """A body, and what is hostile about it."""

    name: str
    path: str
    make: Callable[[int, int], dict[str, Any]]
    """Of the context's length and the bytes that a body may have."""


def chat(**fields: Any) -> dict[str, Any]:
    """A chat with a short answer."""
    return {"messages": [USER], "max_tokens": 16, **fields}


def words(size: int) -> str:
    """Prose of a given number of characters."""
    return ("the ferry left the island before sunrise, and only the baker saw it go. " * (size // 70 + 1))[
        :size
    ]


def predicted(text: str) -> dict[str, Any]:
    """A chat whose answer is expected to be this."""
    return chat(prediction={"type": "content", "content": text})


def schema_of(size: int) -> dict[str, Any]:
    """A tool whose parameter is an enum with a given number of words."""
    values = [f"word{number}" for number in range(size)]
    parameters = {"type": "object", "properties": {"a": {"enum": values}}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


NEARLY = ["ab" * 200_000 + str(number) for number in range(16)]
BODIES = [
    Hostile("3.9 million stop_token_ids", CHAT, lambda *_: chat(stop_token_ids=[7] * 3_900_000)),
    Hostile("the same, n=8", CHAT, lambda *_: chat(stop_token_ids=[7] * 3_900_000, n=8)),
    Hostile("1,024 stop_token_ids, n=8", CHAT, lambda *_: chat(stop_token_ids=[7] * 1024, n=8)),
    Hostile("3.9 million prompt ids", "/v1/completions", lambda *_: {"prompt": [7] * 3_900_000}),
    Hostile("260,000 prompt ids", "/v1/completions", lambda *_: {"prompt": [7] * 260_000}),
    Hostile(
        "prompt ids that fill the context",
        "/v1/completions",
        lambda context, _: {"prompt": list(range(100, 140)) * (context // 41), "max_tokens": 8},
    ),
    Hostile(
        "the same, echoed and scored, n=4",
        "/v1/completions",
        lambda context, _: {
            "prompt": list(range(100, 140)) * (context // 41),
            "max_tokens": 1,
            "echo": True,
            "logprobs": 5,
            "n": 4,
        },
    ),
    Hostile("60 prompts", "/v1/completions", lambda *_: {"prompt": [words(2000)] * 60, "max_tokens": 1}),
    Hostile("2 million prompts", "/v1/completions", lambda *_: {"prompt": ["a"] * 2_000_000}),
    Hostile("16 long stop strings", CHAT, lambda *_: chat(stop=NEARLY, max_tokens=200)),
    Hostile(
        "16 stop strings, nearly matched",
        CHAT,
        lambda *_: chat(stop=[text[:4000] for text in NEARLY], max_tokens=300, regex="(ab){400}"),
    ),
    Hostile("a prediction of a million words", CHAT, lambda *_: predicted("word " * MILLION)),
    Hostile("a prediction as long as the context", CHAT, lambda context, _: predicted(words(4 * context))),
    Hostile("a text of 8 MB", CHAT, lambda _, most: chat(messages=[{**USER, "content": words(most - 500)}])),
    Hostile(
        "spaces, as many as are encoded",
        CHAT,
        lambda c, _: chat(messages=[{**USER, "content": " " * 127 * c}]),
    ),
    Hostile(
        "letters, as many as are encoded",
        CHAT,
        lambda c, _: chat(messages=[{**USER, "content": "a" * 127 * c}]),
    ),
    Hostile("to tokenize", "/tokenize", lambda c, _: {"content": ",1" * 60 * c, "with_pieces": True}),
    Hostile("to detokenize", "/detokenize", lambda *_: {"tokens": [7] * 260_000}),
    Hostile("10,000 messages", CHAT, lambda *_: chat(messages=[{**USER, "content": "a"}] * 10_000)),
    Hostile(
        "80,000 content parts",
        CHAT,
        lambda *_: chat(messages=[{**USER, "content": [{"type": "text", "text": "a"}] * 80_000}]),
    ),
    Hostile("1,024 biases", CHAT, lambda *_: chat(logit_bias={str(token): -1 for token in range(1024)})),
    Hostile("260,000 biases", CHAT, lambda *_: chat(logit_bias={str(token): -1 for token in range(130_000)})),
    Hostile("nested lists", CHAT, lambda *_: chat(metadata=json.loads("[" * 900 + "]" * 900))),
    Hostile("quotes and commas in a text", CHAT, lambda _, most: chat(user='",' * (most // 3 - 200))),
    Hostile("a tool with 100,000 words", CHAT, lambda *_: chat(tools=[schema_of(100_000)])),
    Hostile(
        "128 tools",
        CHAT,
        lambda *_: chat(tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(128)]),
    ),
    Hostile(
        "log-probabilities, n=8", CHAT, lambda *_: chat(n=8, logprobs=True, top_logprobs=20, max_tokens=300)
    ),
    Hostile(
        "a schema",
        CHAT,
        lambda *_: chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": [f"w{n}" for n in range(5000)]}},
            }
        ),
    ),
]


def post(url: str, hostile: Hostile, context: int, most_bytes: int) -> tuple[int, float]:
    """(the answer's status, seconds until it was there). 0: none came."""
    content = json.dumps(hostile.make(context, most_bytes), separators=(",", ":")).encode()
    headers = {"content-type": "application/json"}
    began = time.monotonic()
    try:
        reply = httpx.post(f"{url}{hostile.path}", content=content, headers=headers, timeout=600)
    except httpx.HTTPError:
        return 0, time.monotonic() - began
    return reply.status_code, time.monotonic() - began


def pipeline(url: str, seconds: float = 5.0) -> tuple[int, float]:
    """Four connections that send requests without end, and read nothing. Returns (0, seconds)."""
    place = urlsplit(url)
    until = time.monotonic() + seconds

    def send() -> None:
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection((place.hostname, place.port), 5) as client:
                while time.monotonic() < until:
                    client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0, seconds


# --- the measurement -----------------------------------------------------------------------------------


def measure(url: str, context: int, most_bytes: int, only: str) -> list[dict[str, Any]]:
    """A row for each body."""
    rows: list[dict[str, Any]] = []
    with streaming(url) as stream:
        while not stream.moments:
            time.sleep(0.1)
        began = time.monotonic()
        time.sleep(ALONE_S)
        alone = stream.longest(began, time.monotonic())
        print(f"undisturbed: {alone:.0f} ms", flush=True)
        attacks: list[tuple[str, Callable[[], tuple[int, float]]]] = [
            (body.name, partial(post, url, body, context, most_bytes)) for body in BODIES
        ]
        attacks.append(("4 connections without end", partial(pipeline, url)))
        for name, attack in attacks:
            if only not in name:
                continue
            began = time.monotonic()
            status, seconds = attack()
            time.sleep(AFTER_S)
            gap = stream.longest(began, time.monotonic())
            rows.append({"body": name, "status": status, "s": seconds, "gap_ms": gap, "ratio": gap / alone})
            print(f"{name}: {status}, {seconds:.2f} s, gap {gap:.0f} ms ({gap / alone:.1f} ×)", flush=True)
    return rows


def main() -> None:
    """Send it all; the last line of output is one JSON object."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--read", metavar="URL", help=argparse.SUPPRESS)
    arguments.add_argument("--url", default=None, help="a running server; one of its own if absent")
    arguments.add_argument("--model", type=model_path, default=None, help="a path or the name of a model")
    arguments.add_argument("--speculate", default="auto")
    arguments.add_argument("--context", type=int, default=8192)
    arguments.add_argument("--threads", type=int, default=0)
    arguments.add_argument("--most", type=float, default=250.0, help="milliseconds a stream may wait")
    arguments.add_argument("--only", default="", help="the bodies with this in their name")
    args = arguments.parse_args()
    if args.read:
        read(args.read)
    command = serve_command(
        args.model, args.speculate, threads=args.threads, sequences=4, context=args.context
    )
    if args.url is not None:
        check_server(args.url)
        rows = measure(args.url, args.context, 8 << 20, args.only)
    else:
        with started(command) as running:
            rows = measure(running.url, args.context, 8 << 20, args.only)
    head = ("body", "status", "seconds", "longest gap, ms", "× undisturbed")
    cells = [
        (row["body"], str(row["status"]), f"{row['s']:.2f}", f"{row['gap_ms']:.0f}", f"{row['ratio']:.1f}")
        for row in rows
    ]
    print(table(head, cells))
    slow = [row for row in rows if row["gap_ms"] > args.most and row["status"] in (0, 200)]
    print(json.dumps({"most_ms": args.most, "slow": [row["body"] for row in slow], "rows": rows}))
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    run_benchmark(main)
