"""A Ray cluster of two nodes on this machine, as `ray start` makes it: config files of Serve, the command
that joins it, and a node that dies. `nightly/test_ray.py` runs it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import ray_serve  # noqa: F401  # skips where there is no Ray

# isort: split
from gguf_factory import tiny_llama

WAIT_S = 300.0
BIN = Path(sys.executable).parent
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0,
    "ignore_eos": True,
}
LONG = CHAT | {"max_tokens": 1500, "stream": True}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Nodes:
    """The nodes, each with one processor. `port`: where Serve listens."""

    folder: Path
    environment: dict[str, str]
    gcs: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str) -> None:
        """The first one is the head."""
        head = ["--head", f"--port={self.gcs}", f"--dashboard-port={self.dashboard}"]
        which = (
            [f"--address=127.0.0.1:{self.gcs}"] if self.running else [*head, f"--temp-dir={self.folder}/ray"]
        )
        common = [
            "--num-cpus=1",
            "--object-store-memory=80000000",
            "--disable-usage-stats",
            f"--dashboard-agent-listen-port={free_port()}",
        ]
        self.running[name] = subprocess.Popen(
            [BIN / "ray", "start", "--block", *which, *common],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def processes(self, deployment: str, node: str | None = None) -> list[psutil.Process]:
        """Those of a deployment's replicas, on one node or on all."""
        found = []
        for each in [self.running[node]] if node else self.running.values():
            for process in psutil.Process(each.pid).children(recursive=True):
                try:
                    if f"ServeReplica:foredraft:{deployment}" in " ".join(process.cmdline()):
                        found.append(process)
                except psutil.Error:
                    continue
        return found

    def kill(self, name: str) -> None:
        """All its processes at once, as where a machine loses its power."""
        node = psutil.Process(self.running.pop(name).pid)
        for process in [*node.children(recursive=True), node]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue

    def stop(self) -> None:
        """All nodes."""
        for name in list(self.running):
            self.kill(name)

    def command(self, *command: str) -> str:
        """A command of Serve's, and what it writes."""
        address = f"http://127.0.0.1:{self.dashboard}"
        done = subprocess.run(
            [BIN / "serve", *command, "--address", address],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def deploy(self, version: int, *, context: int = 2048, fronts: int = 2, scaling: str = "") -> None:
        """Write both files as the documentation has them, deploy, and wait until that is done. `scaling`:
        Serve's for the model, which then has one replica at least and two at most.
        """
        self.settings(context, "replicas = 1\nmax_replicas = 2\nsequences = 2" if scaling else "replicas = 2")
        (self.folder / "serve.yaml").write_text(
            f"""
proxy_location: HeadOnly  # both nodes have the same address here
http_options: {{host: 127.0.0.1, port: {self.port}}}
applications:
  - name: foredraft
    import_path: foredraft.scale.ray:app
    args: {{settings: {self.folder}/foredraft.toml, version: {version}}}
    deployments:
      - {{name: front, num_replicas: {fronts}}}
      {scaling}
"""
        )
        wait_until(lambda: self.listening(self.dashboard), "the head does not start")
        self.command("deploy", str(self.folder / "serve.yaml"))
        wait_until(lambda: self.is_deployed(context, fronts), "it is not deployed")

    def settings(self, context: int, lines: str) -> None:
        (self.folder / "foredraft.toml").write_text(
            f"""
cache_dir = "{self.folder}/cache"
metrics = true
[models.tiny]
path = "{self.folder}/tiny.gguf"
threads = 1
{lines}
context_length = {context}
speculate = "off"
"""
        )

    def is_deployed(self, context: int, fronts: int) -> bool:
        status = self.command("status")
        if "status: RUNNING" not in status or len(self.processes("front")) != fronts:
            return False
        models = httpx.get(f"{self.url}/v1/models", timeout=WAIT_S).json()["data"]
        return bool(models[0].get("max_model_len") == context)

    def listening(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    tiny_llama(
        folder / "tiny.gguf", layers=8, embd=512, heads=8, kv_heads=4, ctx_train=4096, weight_type="f32"
    )
    token = folder / "token"
    token.write_text(uuid.uuid4().hex)
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment.pop("RAY_ADDRESS", None)
    made = Nodes(folder, environment)
    try:
        made.start("head")
        wait_until(lambda: made.listening(made.dashboard), "the head does not start")
        made.start("second")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def deployed(nodes: Nodes) -> Nodes:
    nodes.deploy(1)
    return nodes


def wait_until(true: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@contextmanager
def asking(url: str, *, clients: int = 2, tokens: int = 40) -> Iterator[list[tuple[int, str]]]:
    """Clients that send one request after the other; the status and the text of each."""
    got: list[tuple[int, str]] = []
    enough = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=WAIT_S) as http:
            while not enough.is_set():
                answer = http.post(f"{url}/v1/chat/completions", json=CHAT | {"max_tokens": tokens})
                got.append((answer.status_code, text_of(answer)))

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(ask) for _ in range(clients)]
        try:
            yield got
        finally:
            enough.set()
        for each in asked:
            each.result()


def text_of(answer: httpx.Response) -> str:
    if not answer.is_success:
        return answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def text(nodes: Nodes, tokens: int) -> str:
    """The right one."""
    url = f"{nodes.url}/v1/chat/completions"
    return text_of(httpx.post(url, json=CHAT | {"max_tokens": tokens}, timeout=WAIT_S))


def test_a_new_version_fails_no_request(deployed: Nodes) -> None:
    assert [len(deployed.processes("model-tiny", name)) for name in deployed.running] == [1, 1]
    before = {process.pid for process in deployed.processes("model-tiny")}
    expected = text(deployed, 40)
    with asking(deployed.url) as got:
        deployed.deploy(2, context=1024)
        wait_until(lambda: len(deployed.processes("model-tiny")) == 2, "no second replica")
    assert not before & {process.pid for process in deployed.processes("model-tiny")}
    assert len(got) > 10
    assert set(got) == {(200, expected)}


STAY, GO = (
    "- {name: model-tiny, autoscaling_config: {min_replicas: 1, max_replicas: 2, look_back_period_s: 11, "
    f"downscale_delay_s: 3, target_ongoing_requests: {target}}}}}"
    for target in (1, 8)
)
"""Four requests need two replicas, and then one."""


def running(url: str) -> list[int]:
    """Requests in the engine of each replica."""
    states = httpx.get(f"{url}/v1/speculation", timeout=WAIT_S).json()
    return [sum(state["requests"].values()) for state in states.values()]


def test_replicas_come_under_load_and_go_without_it(deployed: Nodes) -> None:
    deployed.command("shutdown", "-y")  # a new version would begin with as many replicas as there are
    deployed.deploy(3, scaling="# the delays of the application itself")
    assert len(deployed.processes("model-tiny")) == 1
    few, many = text(deployed, 40), text(deployed, 900)
    with asking(deployed.url, clients=8) as got:
        wait_until(lambda: len(running(deployed.url)) == 2, "no second replica")
    assert set(got) == {(200, few)}
    with asking(deployed.url, clients=4, tokens=900) as got:
        deployed.deploy(3, scaling=STAY)
        wait_until(lambda: len(deployed.processes("model-tiny")) == 2, "an old replica stays")
        wait_until(lambda: min(running(deployed.url)) > 0, "a replica is idle")
        two = {process.pid for process in deployed.processes("model-tiny")}
        deployed.deploy(3, scaling=GO)
        wait_until(lambda: len(deployed.processes("model-tiny")) == 1, "the second replica stays")
    assert {process.pid for process in deployed.processes("model-tiny")} < two
    assert set(got) == {(200, many)}
    deployed.deploy(1)


def counters(url: str) -> dict[str, float]:
    """Of each replica its finished requests, and the processor time of each front."""
    text = httpx.get(f"{url}/metrics", timeout=WAIT_S).text
    found = re.findall(r'^foredraft_requests_total{.*replica="(\w+)"} (\S+)$', text, re.MULTILINE)
    found += re.findall(r'^process_cpu_seconds_total{replica="(front-\w+)"} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_every_scrape_has_all_fronts(deployed: Nodes) -> None:
    for _ in range(4):
        httpx.post(f"{deployed.url}/v1/chat/completions", json=CHAT | {"max_tokens": 5}).raise_for_status()
    scrapes = [counters(deployed.url) for _ in range(12)]
    fronts = {name for name in scrapes[0] if name.startswith("front-")}
    assert len(fronts) >= 2
    for before, after in pairwise(scrapes):
        assert before.keys() == after.keys()
        assert all(after[name] >= before[name] for name in before)


def test_a_node_that_dies_ends_its_own_answers_only(deployed: Nodes) -> None:
    wait_until(lambda: len(deployed.processes("model-tiny")) == 2, "no replicas")
    url = f"{deployed.url}/v1/chat/completions"

    def stream(number: int) -> tuple[str, str]:
        """Its last lines, and the code of its error if there was one."""
        messages = [{"role": "user", "content": f"{number} hello"}]
        lines: list[str] = []
        try:
            with httpx.stream("POST", url, json=LONG | {"messages": messages}, timeout=WAIT_S) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    if len(lines) > 20:
                        begun.add(number)
        except httpx.RemoteProtocolError:
            return "", "connection"
        codes = re.findall(r'"code": ?"(\w+)"', "".join(lines))
        return str(lines[-3:]), (codes or [""])[0]

    begun: set[int] = set()
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, number) for number in range(4)]
        wait_until(lambda: len(begun) == 4, "no streams begin")
        allowed = {"", "replica_lost", *(["connection"] if deployed.processes("front", "second") else [])}
        deployed.kill("second")
        ends = [each.result() for each in streams]
    try:
        codes = {code for _, code in ends}
        assert "" in codes
        assert codes != {""}
        assert codes <= allowed, ends
        assert all("[DONE]" in text for text, code in ends if not code)
        for _ in range(4):
            httpx.post(url, json=CHAT | {"max_tokens": 5}, timeout=WAIT_S).raise_for_status()
    finally:
        deployed.start("second")
    wait_until(lambda: deployed.processes("model-tiny", "second"), "the second node gets no replica")


def test_the_command_joins_a_cluster_which_goes_on(nodes: Nodes) -> None:
    wait_until(lambda: nodes.listening(nodes.dashboard), "the head does not start")
    nodes.command("shutdown", "-y")
    wait_until(lambda: not nodes.processes("front"), "the application stays")
    environment = nodes.environment | {"RAY_ADDRESS": f"127.0.0.1:{nodes.gcs}"}
    options = ["--threads", "1", "--replicas", "2", "--port", str(free_port())]
    process = subprocess.Popen(
        [BIN / "foredraft", "serve", "--ray", "-m", str(nodes.folder / "tiny.gguf"), *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        cwd=nodes.folder,
    )
    assert process.stderr is not None
    try:
        said = next(line for line in process.stderr if line.startswith("Serving"))
        url = said.split()[-1]
        asked = CHAT | {"max_tokens": 5}
        assert httpx.post(f"{url}/chat/completions", json=asked, timeout=WAIT_S).status_code == 200
        assert [len(nodes.processes("model-tiny", name)) for name in nodes.running] == [1, 1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 143
    finally:
        process.kill()
        process.stderr.close()
    wait_until(lambda: not nodes.processes("model-tiny"), "the replicas stay")
    assert all(node.poll() is None for node in nodes.running.values())
    assert "applications: {}" in nodes.command("status")
