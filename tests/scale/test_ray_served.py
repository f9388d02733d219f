"""Replicas on a Ray cluster on this machine: what only its processes show. `nightly/test_ray.py` runs it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import anthropic
import httpx
import openai
import pytest

ray = pytest.importorskip("ray")
from ray import serve  # noqa: E402
from ray.serve._private.common import DeploymentID  # noqa: E402
from ray.serve.exceptions import DeploymentUnavailableError  # noqa: E402

from foredraft.errors import BackendError, CapacityError, ConfigError  # noqa: E402
from foredraft.scale import ray_run  # noqa: E402
from foredraft.scale.message import Forwarded  # noqa: E402
from foredraft.scale.prefix_router import known_replicas  # noqa: E402
from foredraft.scale.ray import APP, RayReplicas, app, listening_host, read_all, scaling  # noqa: E402
from foredraft.scale.start_error import StartError  # noqa: E402
from foredraft.server.auth import Caller  # noqa: E402
from foredraft.server.settings import ModelSettings  # noqa: E402
from gguf_factory import tiny_llama  # noqa: E402

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
LONG = {"model": "tiny", "messages": HELLO, "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
WAIT_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few milliseconds a token."""
    return tiny_llama(
        tmp_path_factory.mktemp("model") / "tiny.gguf",
        layers=8,
        embd=512,
        heads=8,
        kv_heads=4,
        ctx_train=4096,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[int]:
    """The port where Serve listens."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    ray.init(
        address="local",  # not one that runs on this machine
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield port
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def settings(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tiny = {"path": str(model), "threads": 1, "replicas": 2, "context_length": 4096, "speculate": "off"}
    return {"cache_dir": str(tmp_path_factory.mktemp("cache")), "metrics": True, "models": {"tiny": tiny}}


@pytest.fixture(scope="module")
def url(cluster: int, settings: dict[str, Any]) -> str:
    """The address of an application with two replicas."""
    serve.run(app(settings), name=APP)
    return f"http://127.0.0.1:{cluster}"


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)


def running(url: str) -> dict[str, int]:
    """Requests in the engine of each replica."""
    states = httpx.get(f"{url}/v1/speculation", timeout=WAIT_S).json()
    return {name: sum(state["requests"].values()) for name, state in states.items()}


def fronts(url: str) -> list[str]:
    """The names of the fronts, as `running` has those of replicas."""
    text = httpx.get(f"{url}/metrics", timeout=WAIT_S).text
    return re.findall(r'process_open_fds{replica="front-(\w+)"}', text)


def given_up(url: str) -> float:
    """Answers that replicas did not finish."""
    text = httpx.get(f"{url}/metrics", timeout=WAIT_S).text
    found = re.findall(r'^foredraft_requests_total{finished_reason="abort".*} (\S+)$', text, re.MULTILINE)
    return sum(map(float, found))


def answers(url: str) -> bool:
    """Whether a front answers."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0).is_success
    except httpx.HTTPError:
        return False


def wait_until(true: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def pid_of(replica: str) -> int:
    """The process of the replica with this name, as `running` has it."""
    name = replica.partition("@")[2]
    handle = next(
        ray.get_actor(each["name"], namespace=each["namespace"])
        for each in ray.util.list_named_actors(all_namespaces=True)
        if each["name"].endswith(f"#{name}")
    )
    pid: int = ray.get(handle.__ray_call__.remote(lambda _: os.getpid()))
    return pid


def streaming(client: openai.OpenAI, count: int = 1) -> list[tuple[threading.Thread, dict[str, Any]]]:
    """Begin streams, each with what became of it."""
    begun = []
    for number in range(count):
        got: dict[str, Any] = {"text": "", "error": None}

        def read(got: dict[str, Any] = got, number: int = number) -> None:
            asked: list[Any] = [{"role": "user", "content": f"{number} hello"}]
            try:
                stream: Any = client.chat.completions.create(
                    model="tiny", messages=asked, max_tokens=1500, temperature=0, stream=True,
                    extra_body={"ignore_eos": True},
                )  # fmt: skip
                for chunk in stream:
                    got["text"] += chunk.choices[0].delta.content or ""
                    got["finish"] = chunk.choices[0].finish_reason
            except openai.OpenAIError as error:
                got["error"] = error

        thread = threading.Thread(target=read)
        thread.start()
        begun.append((thread, got))
    return begun


def test_the_clients_of_both_apis(url: str, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=30, temperature=0)
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=30, temperature=0, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert streamed == whole.choices[0].message.content
    theirs = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=WAIT_S)
    with theirs.messages.stream(
        model="tiny", messages=HELLO, max_tokens=30, extra_body={"temperature": 0}
    ) as events:
        assert events.get_final_text() == streamed
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    refused = httpx.post(f"{url}/v1/chat/completions", json=LONG | {"temperature": -1})
    assert refused.status_code == 400
    assert len(refused.headers.get_list("x-request-id")) == 1
    assert len(running(url)) == 2


def test_a_client_that_leaves_ends_its_request(url: str) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=LONG | {"stream": True}) as answer:
        texts = answer.iter_text()
        next(texts)
        assert sum(running(url).values()) == 1
    wait_until(lambda: not any(running(url).values()), "the request goes on")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/chat/completions", json=LONG, timeout=1.0)
    wait_until(lambda: not any(running(url).values()), "the request goes on")


def test_a_front_that_is_killed_ends_its_answers(url: str, client: openai.OpenAI) -> None:
    before = given_up(url)
    begun = streaming(client, 2)
    wait_until(lambda: all(got["text"] or got["error"] for _, got in begun), "no streams begin")
    os.kill(pid_of(f"@{fronts(url)[0]}"), signal.SIGKILL)
    for thread, got in begun:
        thread.join(WAIT_S)
        assert got["error"] is not None
    wait_until(lambda: answers(url), "no front begins")
    wait_until(lambda: given_up(url) == before + 2, "the requests go on")
    assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5).choices


def test_a_new_version_lets_running_requests_finish(
    url: str, client: openai.OpenAI, settings: dict[str, Any]
) -> None:
    before = set(running(url))
    [(thread, got)] = streaming(client)
    wait_until(lambda: got["text"] or got["error"], "no stream begins")
    serve.run(app(settings), name=APP)
    assert not before & set(running(url))
    thread.join(WAIT_S)
    assert (got["error"], got["finish"]) == (None, "length")


def test_a_replica_that_is_killed(url: str, client: openai.OpenAI) -> None:
    begun = streaming(client, 4)
    wait_until(lambda: all(got["text"] or got["error"] for _, got in begun), "no streams begin")
    there = running(url)
    victim = max(there, key=lambda name: there[name])
    assert there[victim] > 0
    os.kill(pid_of(victim), signal.SIGKILL)
    for thread, _ in begun:
        thread.join(WAIT_S)
    lost = [got for _, got in begun if got["error"] is not None]
    assert len(lost) == there[victim]
    assert all("has ended" in str(got["error"]) for got in lost)
    assert all(got["finish"] == "length" for _, got in begun if got["error"] is None)
    assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5).choices


def test_a_request_whose_replica_is_killed_before_it_answers(url: str, client: openai.OpenAI) -> None:
    wait_until(lambda: len(running(url)) == 2, "no second replica")
    expected: list[Any] = []
    thread = threading.Thread(
        target=lambda: expected.append(httpx.post(f"{url}/v1/chat/completions", json=LONG, timeout=WAIT_S))
    )
    thread.start()
    wait_until(lambda: any(running(url).values()), "no request begins")
    there = running(url)
    os.kill(pid_of(max(there, key=lambda name: there[name])), signal.SIGKILL)
    thread.join(WAIT_S)
    [answer] = expected
    assert answer.status_code == 200
    again = httpx.post(f"{url}/v1/chat/completions", json=LONG, timeout=WAIT_S)
    assert answer.json()["choices"] == again.json()["choices"]


# --- without a replica ---------------------------------------------------------------------------------


class Handle:
    """The handle of a deployment whose replicas take no request, and its reply. `replies`: of each replica to
    a broadcast, after how many seconds; None never.
    """

    deployment_id = DeploymentID("model", "none")

    def __init__(self, replies: tuple[float | None, ...] = ()) -> None:
        self.answer, self.cancelled, self.replies = self, False, replies

    def options(self, **_: object) -> Handle:
        return self

    def remote(self, _: object) -> Handle:
        return self

    def broadcast(self, *_: object) -> Handle:
        if not self.replies:
            raise DeploymentUnavailableError("model")
        return self

    async def _fetch_replica_results_async(self) -> list[Reply]:
        return [Reply(f"replica-{number}", after) for number, after in enumerate(self.replies)]

    def cancel(self) -> None:
        self.cancelled = True

    async def __anext__(self) -> None:
        await asyncio.sleep(WAIT_S)


class Reply:
    """Of one replica to a broadcast. A negative time is an error at once."""

    cancelled: ClassVar[list[str]] = []

    def __init__(self, name: str, after: float | None) -> None:
        self.name, self.after = name, after

    async def get_async(self) -> tuple[str, bytes]:
        if self.after is not None and self.after < 0:
            raise RuntimeError("a fault")
        await asyncio.sleep(WAIT_S if self.after is None else self.after)
        return self.name, b"ok"

    def cancel(self) -> None:
        self.cancelled.append(self.name)


def test_a_model_without_a_replica_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.scale.ray.LOOK_S", 0.01)
    monkeypatch.setattr("foredraft.scale.ray.PATIENCE_S", 0.1)
    handle = Handle()
    asked = Forwarded("POST", "/v1/completions", b"", (), b"", Caller("ann", "ann"))
    with pytest.raises(CapacityError, match="none is there"):
        asyncio.run(anext(RayReplicas(handle, "front").ask(asked)))
    assert handle.cancelled


def test_a_model_whose_replicas_are_busy_lets_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.scale.ray.LOOK_S", 0.01)
    monkeypatch.setattr("foredraft.scale.ray.PATIENCE_S", 0.1)
    monkeypatch.setitem(known_replicas, Handle.deployment_id, 1)
    asked = Forwarded("POST", "/v1/completions", b"", (), b"", Caller("ann", "ann"))

    async def waiting() -> None:
        await asyncio.wait_for(anext(RayReplicas(Handle((None,)), "front").ask(asked)), 0.5)

    with pytest.raises(TimeoutError):
        asyncio.run(waiting())


def test_a_stuck_replica_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.scale.ray.READ_S", 0.3)
    found = asyncio.run(read_all(Handle((0.0, None, -1.0, 0.01)), "/health"))
    assert found == {"replica-0": b"ok", "replica-3": b"ok"}
    assert Reply.cancelled == ["replica-1"]
    assert asyncio.run(read_all(Handle(), "/health")) == {}


# --- where Serve listens -------------------------------------------------------------------------------


def test_without_keys_the_front_starts_where_only_this_machine_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = SimpleNamespace(host="0.0.0.0")
    client = SimpleNamespace(http_config=options)
    monkeypatch.setattr(serve.context, "_get_global_client", lambda: client)
    with pytest.raises(StartError, match="other machines can reach"):
        listening_host((), allow_public=False)
    assert listening_host((), allow_public=True) == "0.0.0.0"
    options.host = "127.0.0.1"
    assert listening_host((), allow_public=False) == "127.0.0.1"


def test_another_application_at_the_root_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    details = {"applications": {"theirs": {"route_prefix": "/"}, "beside": {"route_prefix": "/beside"}}}
    client = SimpleNamespace(get_serve_details=lambda: details)
    monkeypatch.setattr(serve.context, "_get_global_client", lambda: client)
    names = dict.fromkeys(details["applications"])
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=names))
    with pytest.raises(ConfigError, match="'theirs' on this Ray cluster already answers at /"):
        ray_run._check_alone()
    del names["theirs"]
    ray_run._check_alone()


def test_a_cluster_that_cannot_be_joined_may_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(BackendError, match="Failed to connect") as raised, ray_run._cluster("127.0.0.1:1"):
        pass
    assert "RAY_AUTH_MODE=token" in str(raised.value.hint)


def test_replicas_come_soon_and_go_late() -> None:
    one = ModelSettings(path="m", replicas=1, max_replicas=3, sequences=4)
    config = scaling(one)["autoscaling_config"]
    assert (config.min_replicas, config.max_replicas, config.target_ongoing_requests) == (1, 3, 4)
    assert config.upscale_delay_s < 10
    assert config.downscale_delay_s >= 600
    assert scaling(replace(one, max_replicas=1)) == {"num_replicas": 1}


def test_a_cluster_that_ends_while_models_load_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_run, "LOOK_S", 0.001)
    monkeypatch.setattr(ray_run, "_overview", lambda: None)
    with pytest.raises(BackendError, match="the cluster has ended"):
        ray_run._wait_until_running(lambda _: None)


# --- the command ---------------------------------------------------------------------------------------


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "foredraft", "serve", "--ray", "--port", "0", "--threads", "1", *options]


def test_a_model_that_cannot_be_loaded_is_an_error_like_others(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(model.read_bytes()[:100_000])
    done = subprocess.run(
        command("-m", str(broken)), capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert lines[-2].startswith("Error: Model broken: ")
    assert lines[-1] == "The download is incomplete: repeat it."
    assert "Traceback" not in done.stderr


def test_the_command_serves_and_ends(model: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command("-m", str(model)), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    try:
        said = next(line for line in process.stderr if line.startswith("Serving"))
        url = said.split()[-1]
        asked = LONG | {"max_tokens": 5}
        assert httpx.post(f"{url}/chat/completions", json=asked, timeout=WAIT_S).status_code == 200
        next(line for line in process.stderr if "POST /v1/chat/completions 200" in line)
        process.terminate()
        assert process.wait(WAIT_S) == 143
    finally:
        process.kill()
        process.stderr.close()
