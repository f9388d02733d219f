"""What drafts gain where a model's layers are split over two machines, by the delay between them.

    python benchmarks/rpc.py                      the default model, half of its layers on the other machine
    python benchmarks/rpc.py --model MODEL.gguf --delays 0 1 5 20

A forward goes to the other machine and back once, whatever its number of rows. So the longer the way, the
less n rows cost beside one, V(n)/V(1), and the more a draft gains. The two machines are network namespaces
joined by a cable that does not exist, with a thread for each; the delay is the round trip's, half of it in
each direction, made by `tc netem` where the kernel has it, else by a relay between the two (0.1 to 0.3 ms
more). For each delay `auto` and `off` answer the same prompts in turns, and every text is compared with
that of one machine. What was learnt is thrown away between delays.

Needs root, `ip`, and the RPC backend (foredraft rpc-build). Run it on an idle machine; it takes about three
minutes with a model of 135 million parameters. Prints the table for docs/rpc.md; the last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from common import model_path, progress, run_benchmark
from foredraft import Engine
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.native import rpc_build
from foredraft.bench.workloads import select, shipped_prompts
from foredraft.errors import BackendError
from foredraft.types import Rows

SPACES = ("foredraft-here", "foredraft-there")
ADDRESSES = ("10.99.7.1", "10.99.7.2")
PORT, RELAYED = 50052, 50053
ROWS = (1, 2, 4, 8, 16)
DEPTH, REPEATS = 64, 9
READY = re.compile(r"^Serving RPC on ")


def main() -> None:
    """Measure on one machine, and then with each delay; or a part of that, in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=model_path, default=None, help="default model if absent")
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 1.0, 5.0], help="round trips in ms")
    parser.add_argument("--layers", type=int, default=None, help="on the other machine; half if absent")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.model = arguments.model or model_path(None)
    if arguments.relay:
        asyncio.run(relay(float(arguments.relay) / 2000))
    elif arguments.side:
        print(json.dumps(measure(arguments)))
    else:
        compare(arguments)


# --- one side, in a process of its own ------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """V(n) and tokens a second of a model that is split over this host, or not ("alone")."""
    hosts = [] if arguments.side == "alone" else [arguments.side]
    off, auto = Engine.load_together(
        arguments.model,
        ["off", "auto"],
        rpc=hosts,
        gpu_layers=arguments.layers if hosts else 0,
        threads=1,
        context_length=1024,
        cache_dir=arguments.cache,
        remember=False,
    )
    with off, auto:
        costs = curve(off)
        exact = off.model.capabilities.batch_invariant
        note = off.model.capabilities.invariance_note
        seconds = {"off": 0.0, "auto": 0.0}
        tokens = {"off": 0, "auto": 0}
        texts: dict[str, list[str]] = {"off": [], "auto": []}
        cases = select(shipped_prompts(), limit=arguments.prompts)
        auto.generate(
            [{"role": "user", "content": cases[0].turns[0]}], max_tokens=arguments.tokens, temperature=0
        )
        for number, case in enumerate(cases):
            order = (("off", off), ("auto", auto))
            for name, engine in order if number % 2 else order[::-1]:
                began = time.perf_counter()
                answer = engine.generate(
                    [{"role": "user", "content": case.turns[0]}], max_tokens=arguments.tokens, temperature=0
                )
                seconds[name] += time.perf_counter() - began
                if answer.error:
                    raise BackendError(answer.error)
                tokens[name] += len(answer.tokens)
                texts[name].append(answer.text)
    rates = {name: tokens[name] / seconds[name] for name in seconds}
    return {"curve": costs, "rates": rates, "texts": texts, "exact": exact, "note": note}


def curve(engine: Engine) -> dict[int, float]:
    """Milliseconds of a forward, the median, by its number of rows; sizes in turns."""
    model = engine.model
    model.forward([Rows(0, 0, tuple(range(100, 100 + DEPTH)), 1)])
    took: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(REPEATS):
        for rows in ROWS:
            began = time.perf_counter()
            model.forward([Rows(0, DEPTH, tuple(range(200, 200 + rows)), rows)])
            took[rows].append(1e3 * (time.perf_counter() - began))
            model.truncate(0, DEPTH)
    model.release(0)
    return {rows: median(times[1:]) for rows, times in took.items()}


async def relay(delay: float) -> None:
    """Pass bytes on to the server, each `delay` seconds late."""

    async def late(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            data = b"-"
            while data:
                data = await source.read(1 << 20)
                await waiting.put((time.monotonic() + delay, data))

        reader = asyncio.create_task(read())
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(max(due - time.monotonic(), 0))
            if not data:
                break
            to.write(data)
        await reader
        to.close()

    async def accept(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        its_source, its_to = await asyncio.open_connection(ADDRESSES[1], PORT)
        await asyncio.gather(late(source, its_to), late(its_source, to), return_exceptions=True)

    server = await asyncio.start_server(accept, ADDRESSES[1], RELAYED)
    print("ready", flush=True)
    await server.serve_forever()


# --- two machines ----------------------------------------------------------------------------------------


def run(*words: str) -> bool:
    """Whether a command of the system succeeded."""
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@contextmanager
def two_machines() -> Iterator[None]:
    """Two network namespaces with a cable between them."""
    try:
        for space in SPACES:
            run("ip", "netns", "add", space)
        made = run("ip", "link", "add", "fd-here", "netns", SPACES[0], "type", "veth",
                   "peer", "name", "fd-there", "netns", SPACES[1])  # fmt: skip
        for space, device, address in zip(SPACES, ("fd-here", "fd-there"), ADDRESSES, strict=True):
            made &= run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", device)
            made &= run("ip", "-n", space, "link", "set", device, "up")
            made &= run("ip", "-n", space, "link", "set", "lo", "up")
        if not made:
            raise BackendError(
                "No network namespaces can be made here.", hint="Run it as root, with iproute2."
            )
        yield
    finally:
        for space in SPACES:
            run("ip", "netns", "del", space)


@contextmanager
def process(space: str, words: Sequence[str], ready: re.Pattern[str]) -> Iterator[None]:
    """A process in a namespace, once it says that it is ready."""
    started = subprocess.Popen(
        ["ip", "netns", "exec", space, sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    try:
        if not any(ready.search(line) for line in started.stdout):
            raise BackendError(f"{' '.join(words)} did not start.")
        yield
    finally:
        started.terminate()
        started.wait(20)
        started.stdout.close()


@contextmanager
def delayed(milliseconds: float) -> Iterator[tuple[str, str]]:
    """A round trip that takes so much longer: the server's address, and what delays."""
    if not milliseconds:
        yield f"{ADDRESSES[1]}:{PORT}", ""
        return
    cables = list(zip(SPACES, ("fd-here", "fd-there"), strict=True))
    half = f"{milliseconds / 2}ms"
    done = [
        run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", "netem", "delay", half)
        for space, device in cables
    ]
    if all(done):
        try:
            yield f"{ADDRESSES[1]}:{PORT}", "tc netem"
        finally:
            for space, device in cables:
                run("ip", "netns", "exec", space, "tc", "qdisc", "del", "dev", device, "root")
        return
    with process(SPACES[1], [__file__, "--relay", str(milliseconds)], re.compile("ready")):
        yield f"{ADDRESSES[1]}:{RELAYED}", "relay"


def side(arguments: argparse.Namespace, host: str, layers: int) -> dict[str, Any]:
    """What `measure` finds in a process of its own, on the machine here."""
    with tempfile.TemporaryDirectory() as cache:
        words = [sys.executable, __file__, "--side", host, "--model", str(arguments.model), "--cache", cache]
        words += [
            "--layers",
            str(layers),
            "--prompts",
            str(arguments.prompts),
            "--tokens",
            str(arguments.tokens),
        ]
        done = subprocess.run(
            ["ip", "netns", "exec", SPACES[0], *words], stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise BackendError(f"The side {host} failed.", hint="See what it said above.")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(arguments: argparse.Namespace) -> None:
    """Print the table."""
    if os.geteuid() or not shutil.which("ip"):
        raise BackendError("Network namespaces need root, and the command ip.", hint="apt install iproute2")
    if rpc_build.find(None) is None:
        raise BackendError("llama.cpp's RPC backend is not compiled here.", hint="foredraft rpc-build")
    whole = read_gguf(Path(arguments.model)).block_count
    layers = arguments.layers or whole // 2
    rows, steps = [], len(arguments.delays) + 1
    with ExitStack() as stack:
        stack.enter_context(two_machines())
        progress(1, steps, "one machine")
        alone = side(arguments, "alone", 0)
        rows.append(("one machine", "", alone))
        server = [
            "-m",
            "foredraft",
            "rpc-server",
            "--host",
            ADDRESSES[1],
            "--port",
            str(PORT),
            "--threads",
            "1",
        ]
        stack.enter_context(process(SPACES[1], server, READY))
        for number, delay in enumerate(arguments.delays, 2):
            progress(number, steps, f"{delay:g} ms")
            with delayed(delay) as (host, by):
                rows.append((f"+ {delay:g} ms", by, side(arguments, host, layers)))
    show(arguments.model, layers, whole, rows)


def show(model: str, layers: int, whole: int, rows: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    """The table as Markdown, and everything as JSON."""
    alone = rows[0][2]["texts"]["off"]
    print(f"{Path(model).name}, {layers} of {whole} layers on the other machine, a thread on each\n")
    heads = ["round trip", "V(1), ms", *(f"V({n})/V(1)" for n in ROWS[1:]), "off, tokens/s", "auto, tokens/s"]
    heads += ["auto / off", "other texts than one machine's", "exact"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for name, by, found in rows:
        costs = {int(n): ms for n, ms in found["curve"].items()}
        rates = found["rates"]
        texts = [*found["texts"]["off"], *found["texts"]["auto"]]
        differ = sum(text != expected for text, expected in zip(texts, [*alone, *alone], strict=True))
        cells = [f"{name}{f' ({by})' if by else ''}", f"{costs[1]:.1f}"]
        cells += [f"{costs[n] / costs[1]:.2f}" for n in ROWS[1:]]
        cells += [f"{rates['off']:.1f}", f"{rates['auto']:.1f}", f"{rates['auto'] / rates['off']:.2f}"]
        cells += [f"{differ} of {len(texts)}", "yes" if found["exact"] else found["note"]]
        print("| " + " | ".join(cells) + " |")
    kept = [{"name": n, "by": by, **{k: v for k, v in it.items() if k != "texts"}} for n, by, it in rows]
    print(json.dumps({"benchmark": "rpc", "model": Path(model).name, "layers": layers, "rows": kept}))


if __name__ == "__main__":
    run_benchmark(main)
