"""What the server's measuring scripts share: starting a server, streaming from one, and figures."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from chat_server import ChatServer, chat_server, piece
from server_client import Answer, chat_body, completion_body, new_client, stream_answer
from server_common import (
    check_server,
    gauges,
    idle_shares,
    mean_ratio,
    percentile,
    probing,
    serve_command,
    started,
    table,
)
from server_schemas import first_model

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
USAGE = {"choices": [], "usage": {"completion_tokens": 7}}
CHAT = chat_body("Hello?", 16, seed=3)
LISTENS = "import time; print('model on http://127.0.0.1:9/v1', flush=True); time.sleep(60)"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


def ask(server: ChatServer, body: Mapping[str, Any] = CHAT, *, leave_after: int | None = None) -> Answer:
    async def asked() -> Answer:
        async with new_client(server.url) as client:
            return await stream_answer(client, body, leave_after=leave_after)

    return asyncio.run(asked())


def test_a_stream_is_heard_with_its_times_and_tokens(server: ChatServer) -> None:
    server.events = [piece("One"), piece(" two"), USAGE]
    answer = ask(server)
    assert (answer.text, answer.tokens, answer.error, answer.left) == ("One two", 7, "", False)
    assert [count for _, count in answer.arrivals] == [3, 7]
    assert answer.first_ms is not None
    assert answer.first_ms > 0
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies[0]["seed"] == 3
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


def test_plain_text_is_continued_and_heard_alike(server: ChatServer) -> None:
    server.events = [*({"choices": [{"index": 0, "text": text}]} for text in ("One", "", " two")), USAGE]
    answer = ask(server, completion_body("Hello", 16))
    assert (answer.text, answer.tokens, answer.error) == ("One two", 7, "")
    assert len(answer.arrivals) == 2
    assert server.paths == ["/v1/completions"]
    asked = server.bodies[0]
    assert (asked["prompt"], asked["max_tokens"], asked["temperature"]) == ("Hello", 16, 0.0)


def test_a_client_that_leaves_has_read_that_many_pieces(server: ChatServer) -> None:
    server.events = [piece("One"), piece(" two"), piece(" three"), USAGE]
    answer = ask(server, leave_after=2)
    assert (answer.text, answer.left, answer.error) == ("One two", True, "")


@pytest.mark.parametrize(
    ("events", "error"),
    [([piece("One")], "without usage"), ([piece("One"), {"error": {"message": "Too much."}}], "Too much")],
)
def test_a_stream_that_breaks_off_is_an_error(server: ChatServer, events: list[object], error: str) -> None:
    server.events = events  # type: ignore[assignment]
    assert error in ask(server).error


def test_a_refusal_is_an_error(server: ChatServer) -> None:
    server.status, server.refusal = 429, "Later."
    assert ask(server).error == "429: Later."


def test_tokens_of_a_part_are_counted_by_its_characters() -> None:
    answer = Answer(10.0, "abcdefgh", 4, [(11.0, 2), (12.0, 6), (13.0, 8)])
    assert [answer.tokens_until(when) for when in (10.5, 11.0, 12.5, 99.0)] == [0.0, 1.0, 3.0, 4.0]
    assert answer.decode_rate == 3 / 2
    assert answer.gaps_ms == [1000.0, 1000.0]


def test_short_answers_have_no_rate() -> None:
    assert Answer(0.0, "a", 9, [(1.0, 1)]).decode_rate is None
    assert Answer(0.0, "ab", 3, [(1.0, 1), (2.0, 2)]).decode_rate is None
    assert Answer(0.0).first_ms is None


def test_a_server_is_started_and_ended() -> None:
    with started([sys.executable, "-c", LISTENS]) as running:
        assert running.url == "http://127.0.0.1:9"
        assert running.rss() > 0
        assert len(idle_shares([running], 0.01)) == 1
    assert not psutil.pid_exists(running.process.pid)


def test_a_stopped_server_is_ended_too() -> None:
    with started([sys.executable, "-c", LISTENS]) as running:
        running.process.suspend()
    assert not psutil.pid_exists(running.process.pid)


def test_a_server_that_does_not_start_is_quoted() -> None:
    with (
        pytest.raises(SystemExit, match="No such model"),
        started([sys.executable, "-c", "raise SystemExit('No such model')"]),
    ):
        pass


def test_a_server_that_cannot_be_run_is_named() -> None:
    with (
        pytest.raises(SystemExit, match=r"no/such/python cannot be run: .*No such file"),
        started(["no/such/python"]),
    ):
        pass


# --- a server that somebody else runs --------------------------------------------------------------------


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "http://", "http://a b:1", "http://127.0.0.1:x"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(
        SystemExit, match=f"No server answers at {re.escape(url)}: .*\n.*foredraft serve.* --url"
    ):
        check_server(url)


def test_that_nobody_listens_is_said() -> None:
    url = free_address()
    with pytest.raises(SystemExit, match=f"No server answers at {re.escape(url)}: .*refused"):
        check_server(url)


def test_a_server_that_answers_anything_is_there(server: ChatServer) -> None:
    server.status = 401
    check_server(server.url)


@pytest.mark.parametrize("script", ["server_schemas.py", "server_hostile.py", "server_stalls.py"])
def test_without_a_server_a_script_says_so_and_what_to_do(script: str) -> None:
    command = [sys.executable, str(BENCHMARKS / script), "--url", free_address()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("No server answers at http://127.0.0.1:")
    assert "foredraft serve" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("status", "said"),
    [(200, "lists no model: name one with --model"), (401, "does not list its models: .*401")],
)
def test_without_a_model_the_schemas_say_so(server: ChatServer, status: int, said: str) -> None:
    server.status, server.models = status, []
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(SystemExit, match=said),
    ):
        first_model(client)


def test_health_is_asked_for_all_the_while(server: ChatServer) -> None:
    with probing(server.url, 0.001) as samples:
        while not server.keys:
            pass
    assert samples
    assert all(ms > 0 for _, ms in samples)


def test_the_servers_settings_are_on_its_command_line() -> None:
    command = serve_command("m.gguf", "auto", threads=2, sequences=3, context=512)
    assert command[3:6] == ["serve", "m.gguf", "--port"]
    assert {"--speculate", "--no-remember"} < set(command)
    assert "m.gguf" not in serve_command(None, "off", threads=0, sequences=1, context=0)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, percent) for percent in (0, 20, 21, 50, 99, 100)] == [1, 1, 2, 3, 5, 5]
    assert percentile([], 50) is None


def test_gauges_that_are_not_zero_are_summed() -> None:
    text = """# HELP foredraft_num_requests Requests
foredraft_num_requests{model="a"} 1.0
foredraft_num_requests{model="b"} 2.0
foredraft_num_requests_running{model="a"} 0.0
foredraft_kv_cache_tokens{model="a b"} 12.0
foredraft_preemptions{model="a"} 3.0
"""
    assert gauges(text) == {"foredraft_num_requests": 3.0, "foredraft_kv_cache_tokens": 12.0}


def test_ratios_have_a_geometric_mean() -> None:
    assert mean_ratio([0.5, 2.0, None]) == pytest.approx(1.0)
    assert mean_ratio([None]) is None


def test_tables_are_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
