"""What memory `foredraft serve` takes: when it has loaded the model, and as it answers short requests.

Physics: weights are mapped from the file, and those that kernels want laid out otherwise are in memory once
more. KV cells are reserved for every token of every sequence's context; what of it is resident are the cells
that were written to. Then there are graphs of forwards, one for each shape up to a bound, room for what a
forward computes, and what Python and the drafters hold. RSS counts mapped weights, which the system can drop
and read again; *anonymous* memory it cannot.

    python benchmarks/server_memory.py --requests 1000 --threads 1

Linux only: it reads /proc. Ends with one JSON object, in MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from pathlib import Path

import httpx

from common import progress, run_benchmark
from server_common import started

MIB = 1 << 10
FIELDS = {"rss": "Rss", "pss": "Pss", "anonymous": "Anonymous"}
LOOKS = 5
CLIENTS = 4
SECONDS = 120.0
WORDS = [
    "time",
    "river",
    "stone",
    "light",
    "house",
    "garden",
    "number",
    "table",
    "green",
    "music",
    "paper",
    "winter",
    "bread",
    "road",
]


def memory(pid: int) -> dict[str, int]:
    """RSS, PSS and anonymous memory of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    found = {name: re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE) for name, field in FIELDS.items()}
    return {name: int(match[1]) // MIB for name, match in found.items() if match}


async def asked(url: str, pid: int, requests: int) -> list[dict[str, int]]:
    """Memory before and while `requests` short chats are answered, four at a time."""
    rng, seen, waiting = random.Random(1), [memory(pid)], list(range(requests))

    async def client(http: httpx.AsyncClient) -> None:
        while waiting:
            done = requests - len(waiting)
            waiting.pop()
            text = " ".join(rng.choices(WORDS, k=rng.randint(5, 60)))
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(2, 12)}
            (await http.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()
            if (done + 1) % max(1, requests // LOOKS) == 0:
                seen.append(memory(pid))
                progress(done + 1, requests, str(seen[-1]))

    async with httpx.AsyncClient(timeout=SECONDS) as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    return seen


def main() -> None:
    """Run it; the last line of output is one JSON object."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default=None, help="GGUF file or pulled name; default model if absent")
    made.add_argument("--requests", type=int, default=1000)
    made.add_argument("--threads", type=int, default=0)
    args = made.parse_args()
    command = [sys.executable, "-m", "foredraft", "serve", *([args.model] if args.model else [])]
    command += ["--port", "0", "-t", str(args.threads), "--no-remember", "--log-format", "off"]
    with started(command) as server:
        seen = asyncio.run(asked(server.url, server.process.pid, args.requests))
    for at, look in enumerate(seen):
        print(
            f"{at * args.requests // LOOKS:>6} requests: "
            + ", ".join(f"{k} {v} MiB" for k, v in look.items())
        )
    print(json.dumps({"start": seen[0], "end": seen[-1], "requests": args.requests}))


if __name__ == "__main__":
    run_benchmark(main)
