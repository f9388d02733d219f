"""Asks a server for /health at a steady pace and says how long each answer took.

`python server_prober.py URL SECONDS` asks every SECONDS until its standard input ends, then prints one JSON
list of [time.time(), milliseconds]. It imports nothing beyond the standard library, so that it starts at
once.
"""

from __future__ import annotations

import json
import select
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

TIMEOUT = 30.0


def probe(url: str, seconds: float) -> list[tuple[float, float]]:
    """(time, milliseconds) of each answer. One that never comes counts with its time-out.

    A probe is due every `seconds` whether or not the last one was slow; what is overdue is asked at once.
    """
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=TIMEOUT)
    samples: list[tuple[float, float]] = []
    due = time.perf_counter()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))[0]:
        asked = time.perf_counter()
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
        except OSError:
            connection.close()
        samples.append((time.time(), 1e3 * (time.perf_counter() - asked)))
        due += seconds
    return samples


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], float(sys.argv[2]))))
