"""A server under requests that it cannot answer: is every fault the client's, and is nothing left behind?

First `--malformed` damaged bodies over all paths: every answer has to be a 4xx in its API's form of errors.
Then `--examples` requests for every operation of each kind (fitting the OpenAPI document, not fitting it,
reaching the model) that schemathesis makes up: no 5xx, and no answer that the document does not know. Then no
request may be left, nor a token in the KV cache. Without `--url` the server is one of this process around a
model without weights. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from common import progress, run_benchmark
from server_common import check_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
GAUGES = ("num_requests", "num_requests_running", "num_requests_waiting", "kv_cache_tokens")


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of the server that was asked for, or of one without weights."""
    from foredraft.server.settings import ServerSettings
    from http_server import serving
    from openapi_cases import LIMITS

    if url is not None:
        check_server(url)
        yield url
        return
    with serving(settings=ServerSettings(limits=LIMITS)) as running:
        yield running.url


def send_malformed(url: str, model: str, count: int, seed: int) -> list[str]:
    """What was wrong with the answers."""
    from malformed_bodies import fault, malformed, send

    faults = []
    with httpx.Client(base_url=url, timeout=60) as http:
        for number, request in enumerate(malformed(count, seed=seed, model=model)):
            wrong = fault(send(http, request), request.path)
            if wrong:
                faults.append(f"{request.path}: {request.wrong}: {wrong}")
            if number % 500 == 499:
                progress(number + 1, count, "malformed")
    return faults


def send_made_up(url: str, model: str, examples: int, seed: int) -> tuple[list[str], Counter[int]]:
    """What was wrong, and how often each status came."""
    from openapi_cases import attack, attacks

    faults: list[str] = []
    statuses: Counter[int] = Counter()
    every = attacks(model) if examples else []
    for number, what in enumerate(every):
        try:
            statuses += attack(url, what, examples, model=model, number=seed)
        except Exception as error:  # noqa: BLE001 - schemathesis raises groups of several kinds: all are faults
            faults.append(f"{what}: {error}")
        progress(number + 1, len(every), str(what))
    return faults, statuses


def left_over(url: str) -> list[str]:
    """Gauges that do not get back to 0."""
    lines: list[str] = []
    for _ in range(100):  # requests whose client left end before the next round
        text = httpx.get(f"{url}/metrics").text.splitlines()
        wanted = tuple(f"foredraft_{name}{{" for name in GAUGES)
        lines = [line for line in text if line.startswith(wanted) and not line.endswith(" 0.0")]
        if not lines:
            break
        time.sleep(0.1)
    return lines


def main() -> None:
    """Send it all; the last line of output is one JSON object."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--url", default=None, help="a running server; one of this process if absent")
    arguments.add_argument("--model", default="fake", help="the model's name on that server")
    arguments.add_argument("--malformed", type=int, default=5000)
    arguments.add_argument("--examples", type=int, default=500)
    arguments.add_argument("--seed", type=int, default=0)
    args = arguments.parse_args()
    with server(args.url) as url:
        faults = send_malformed(url, args.model, args.malformed, args.seed)
        more, statuses = send_made_up(url, args.model, args.examples, args.seed)
        faults += more + left_over(url)
    for wrong in faults:
        print(wrong, flush=True)
    found = {"faults": len(faults), "malformed": args.malformed, "made_up": dict(sorted(statuses.items()))}
    print(json.dumps(found))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    run_benchmark(main)
