"""Figures of the server: windows, what they add up to, and that they survive."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

import gguf_factory
from event_streams import following
from foredraft.server.app import build_app
from foredraft.server.auth import hash_key
from foredraft.server.console.figure_store import FILE_NAME, LEVELS, FigureStore
from foredraft.server.console.history import History
from foredraft.server.console.machine import Machine, Use
from foredraft.server.console.overview import MOST_POINTS, LiveOverview, overview_of
from foredraft.server.console.overview_schemas import Overview, Window
from foredraft.server.console.parts import Parts
from foredraft.server.metrics import Watch
from foredraft.server.settings import KeySettings, ServerSettings
from http_server import Running, serving
from served_process import SETTINGS, kill, served

START = 1_800_000_000.0
WINDOWS: tuple[Window, ...] = get_args(Window)


@dataclass
class Clock:
    """A clock, which may be set, beside seconds that only grow."""

    now: float = START
    steady: float = 50.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds


def history_of(clock: Clock, path: Path | None = None) -> History:
    store = None if path is None else FigureStore(path)
    return History(store, Machine(()), clock, lambda: clock.steady)


def passes(history: History, clock: Clock, seconds: int, *, every: int = 1) -> None:
    """So many seconds pass, seen every few."""
    for _ in range(0, seconds, every):
        clock.passes(every)
        history.tick(Use(0.25, 1000, 4000, None))


def answered(history: History, tokens: int, gap_s: float, prompt: int = 10) -> None:
    """An answer comes within this second, of tokens that are so far apart."""
    watch = Watch(100.0, prompt=[1] * prompt)
    watch.ticket.placed = True
    history.began(watch)
    for number in range(tokens):
        history.came(watch, watch.tokens(100.5 + number * gap_s, 1), 1)
    history.ended(watch, "alice", failed=False)


def get(running: Running | str, query: str = "") -> dict[str, Any]:
    url = running if isinstance(running, str) else running.url
    reply = httpx.get(f"{url}/console/overview{query}", timeout=30)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def complete(running: Running, key: str = "none", **body: Any) -> httpx.Response:
    asked = {"prompt": "one two one two", "max_tokens": 40, "temperature": 0, **body}
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{running.url}/v1/completions", json=asked, headers=headers, timeout=30)


# --- the figures -------------------------------------------------------------------------------------------


def test_a_second_has_its_rates_and_times() -> None:
    clock = Clock()
    history = history_of(clock)
    passes(history, clock, 3)
    answered(history, 21, 0.02, prompt=30)
    passes(history, clock, 2)
    found = overview_of(history, "2m")
    assert [point.at for point in found.points] == [START + n for n in range(1, 6)]
    assert [point.tokens_per_s for point in found.points] == [0, 0, 0, 21, 0]
    busy, quiet = found.points[3], found.points[4]
    assert busy.prompt_tokens_per_s == 30
    assert busy.first_token_ms == pytest.approx(500, rel=0.04)
    assert busy.inter_token_p50_ms == pytest.approx(20, rel=0.04)
    assert busy.inter_token_p99_ms == pytest.approx(20, rel=0.04)
    assert (busy.running, busy.waiting) == (1, 0)
    assert (quiet.running, quiet.first_token_ms, quiet.speedup) == (0, None, None)
    assert (quiet.cpu, quiet.memory_bytes, quiet.gpu) == (0.25, 1000, None)
    assert (found.totals.requests, found.totals.generated_tokens, found.totals.failed) == (1, 21, 0)
    assert found.memory_total_bytes == 4000
    assert (found.kept, found.not_kept is None) == (False, False)


def test_waiting_and_running_requests_are_told_apart() -> None:
    clock = Clock()
    history = history_of(clock)
    watches = [Watch(100.0) for _ in range(5)]
    for number, watch in enumerate(watches):
        watch.ticket.placed = number < 2
        history.began(watch)
    passes(history, clock, 1)
    for watch in watches:
        history.ended(watch, "alice", failed=True)
    passes(history, clock, 2)
    points = overview_of(history, "2m").points
    assert [(point.running, point.waiting) for point in points] == [(2, 3), (2, 3), (0, 0)]
    assert overview_of(history, "2m").totals.failed == 5


def test_every_window_has_everything_in_it_and_few_points() -> None:
    clock = Clock(START // 86400 * 86400)
    history = history_of(clock)
    days = 9
    for _ in range(days * 24 * 6):  # of ten minutes
        answered(history, 10, 0.01)
        passes(history, clock, 600, every=100)
    tokens = {window: overview_of(history, window).totals.generated_tokens for window in WINDOWS}
    assert tokens["all"] == 10 * days * 24 * 6
    assert tokens["24h"] == pytest.approx(10 * 24 * 6, abs=10)
    assert tokens["1h"] == pytest.approx(10 * 6, abs=10)
    for window in WINDOWS:
        found = overview_of(history, window)
        assert 1 <= len(found.points) <= MOST_POINTS
        assert sum(p.tokens_per_s * found.step_s for p in found.points) == pytest.approx(
            found.totals.generated_tokens, rel=0.02, abs=10
        )
    assert len(history._rows) <= sum(keep + 1 for _, keep in LEVELS)


@pytest.mark.parametrize("days", [1, 3, 20, 150, 500])
def test_all_has_few_points_however_long_it_is(days: int) -> None:
    clock = Clock(START // 86400 * 86400)
    history = history_of(clock)
    for _ in range(days * 8):
        answered(history, 1, 0.01)
        passes(history, clock, 10800, every=10800)
    found = overview_of(history, "all")
    assert 4 <= len(found.points) <= MOST_POINTS
    assert found.totals.requests == days * 8


def test_a_clock_that_is_set_back_leaves_an_order() -> None:
    clock = Clock()
    history = history_of(clock)
    passes(history, clock, 10)
    clock.now -= 5
    passes(history, clock, 3)
    at = [point.at for point in overview_of(history, "2m").points]
    assert at == sorted(at)


@pytest.mark.parametrize("set_by", [-7200.5, -40, -0.9999, 0.5, 7200])
def test_a_clock_that_is_set_makes_no_absurd_rates(set_by: float) -> None:
    clock = Clock(START + 100)
    history = history_of(clock)
    for _ in range(100):
        answered(history, 30, 0.01)
        passes(history, clock, 1)
    clock.now += set_by
    for _ in range(3):
        answered(history, 30, 0.01)
        passes(history, clock, 1)
    for window in WINDOWS:
        found = overview_of(history, window)
        # What time brought twice counts twice, in the one row in which that was.
        assert max(point.tokens_per_s for point in found.points) <= (30 if window == "2m" else 90)
        assert max(point.at for point in found.points) <= clock.now
    live = overview_of(history, "2m").points
    assert [point.tokens_per_s for point in live[-3:]] == [30, 30, 30]


def test_a_step_that_is_cut_short_has_no_rate_of_a_burst() -> None:
    clock = Clock()
    history = history_of(clock)
    answered(history, 30, 0.01)
    clock.passes(0.001)
    history.tick(None)
    assert overview_of(history, "2m").points[-1].tokens_per_s == 60


def test_a_stream_goes_on_when_the_clock_is_set_back() -> None:
    clock = Clock()
    history = history_of(clock)
    stream = _Stream(history)
    passes(history, clock, 5)
    assert stream.read() == [1, 2, 3, 4, 5]
    clock.now -= 3
    passes(history, clock, 1)
    assert stream.read() == [1, 2, 3], "the points that stand, as those it has are of the future"
    passes(history, clock, 1)
    assert stream.read() == [4]


def test_figures_are_written_although_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = Clock()
    history = history_of(clock, tmp_path / FILE_NAME)
    asyncio.run(history.write())
    clock.now -= 86400
    passes(history, clock, 60)
    assert history._due()


def test_a_start_with_a_clock_that_is_behind_erases_nothing(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / FILE_NAME
    first = history_of(clock, path)
    answered(first, 20, 0.01)
    passes(first, clock, 40)
    asyncio.run(first.close())
    behind = Clock(1e9)
    second = history_of(behind, path)
    asyncio.run(second.write())
    passes(second, behind, 40)
    assert overview_of(second, "24h").totals.generated_tokens == 0, "they are of the future"
    behind.now = clock.now + 60
    assert overview_of(second, "24h").totals.generated_tokens == 20, "the clock was put right"
    asyncio.run(second.close())
    third = history_of(clock, path)
    asyncio.run(third.write())
    for window in ("1h", "24h"):
        assert overview_of(third, window).totals.generated_tokens == 20


# --- what survives -----------------------------------------------------------------------------------------


def test_figures_and_usage_survive_a_restart(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / FILE_NAME
    first = history_of(clock, path)
    answered(first, 20, 0.01)
    passes(first, clock, 40)
    asyncio.run(first.write())
    assert first.not_kept is None
    clock.passes(20)
    second = history_of(clock, path)
    asyncio.run(second.write())
    for window in ("1h", "24h", "all"):
        found = overview_of(second, window)
        assert found.totals.generated_tokens == 20
        assert found.totals.inter_token_ms.p50 == pytest.approx(10, rel=0.04)
        assert (found.since, found.kept) == (START, True)
    assert overview_of(second, "2m").totals.generated_tokens == 0
    assert (second.usage()["alice"].requests, second.usage()["alice"].tokens) == (1, 20)
    answered(second, 5, 0.01)
    assert second.usage()["alice"].tokens == 25


def test_two_servers_with_one_file_show_the_figures_of_both(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / FILE_NAME
    both = [history_of(clock, path) for _ in range(2)]
    for number, history in enumerate(both):
        answered(history, 10 + number, 0.01)
    for _ in range(30):
        clock.passes(1)
        for history in both:
            history.tick(None)
    for history in (*both, *both):
        asyncio.run(history.write())
    for history in both:
        found = overview_of(history, "1h")
        assert found.totals.generated_tokens == 21
        assert sum(p.tokens_per_s * 30 for p in found.points) == pytest.approx(21, rel=0.05)
        assert history.usage()["alice"].tokens == 21


def test_a_file_that_cannot_be_written_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / FILE_NAME
    path.mkdir()
    history = history_of(clock, path)
    answered(history, 20, 0.01)
    passes(history, clock, 40)
    asyncio.run(history.write())
    found = overview_of(history, "1h")
    assert (found.totals.generated_tokens, found.kept) == (20, False)
    assert found.not_kept is not None
    assert FILE_NAME in found.not_kept
    assert str(tmp_path) not in found.not_kept, "paths stay inside"
    path.rmdir()
    asyncio.run(history.write())
    assert overview_of(history, "1h").kept
    again = history_of(clock, path)
    asyncio.run(again.write())
    assert overview_of(again, "1h").totals.generated_tokens == 20


def test_a_server_that_stops_tries_once_more_what_could_not_be_written(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / FILE_NAME
    path.mkdir()
    history = history_of(clock, path)
    answered(history, 20, 0.01)
    passes(history, clock, 1)
    asyncio.run(history.write())
    assert history.not_kept is not None
    path.rmdir()
    answered(history, 7, 0.01)
    asyncio.run(history.close())
    again = history_of(clock, path)
    asyncio.run(again.write())
    assert again.usage()["alice"].tokens == 27
    assert overview_of(again, "1h").totals.generated_tokens == 27


def test_the_file_is_bounded_and_holds_figures_only(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / FILE_NAME
    history = history_of(clock, path)
    for _ in range(40):
        answered(history, 10, 0.01)
        passes(history, clock, 86400, every=600)
        asyncio.run(history.write())
    rows = sum(keep + 1 for step, keep in LEVELS[:-1]) + 42
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM figures").fetchone()[0] <= rows
        texts = [text for (text,) in file.execute("SELECT data FROM figures")]
    assert max(map(len, texts)) < 2000
    names = {name for text in texts for name in json.loads(text)}
    assert names <= {
        "seconds",
        "requests",
        "read",
        "generated",
        "first",
        "gaps",
        "running",
        "memory",
        "cpu",
        "cpu_s",
    }


def test_a_server_that_stops_writes_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with serving(console=Parts(history=History(FigureStore(path)))) as running:
        assert complete(running, max_tokens=7, ignore_eos=True).status_code == 200
    found = History(FigureStore(path))
    asyncio.run(found.write())
    assert overview_of(found, "all").totals.generated_tokens == 7
    assert found.usage()["local"].tokens == 7


# --- over HTTP ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def used() -> Iterator[Running]:
    """A server that has answered four requests, and been left by one."""
    with serving(speculate="ngram-simple:n=3,m=8") as running:
        for _ in range(3):
            assert complete(running).status_code == 200
        with httpx.stream(
            "POST",
            f"{running.url}/v1/completions",
            json={"prompt": "x", "stream": True, "max_tokens": 4000, "ignore_eos": True},
            timeout=30,
        ) as reply:
            next(reply.iter_lines())
        time.sleep(1.5)
        yield running


@pytest.mark.parametrize("window", WINDOWS)
def test_what_was_asked_is_counted(used: Running, window: str) -> None:
    found = get(used, f"?window={window}")
    Overview.model_validate(found)
    totals = found["totals"]
    assert (found["window"], totals["requests"], totals["failed"]) == (window, 4, 0)
    assert totals["generated_tokens"] >= 3
    assert totals["first_token_ms"]["p50"] > 0
    assert totals["drafts"] == sum(each["drafts"] for each in totals["drafters"].values())
    assert sum(totals["accepted_by_depth"]) == sum(d["accepted"] for d in totals["drafters"].values())
    assert found["points"]
    assert found["points"][-1]["memory_bytes"] > 1 << 20


def test_an_unknown_window_is_refused(used: Running) -> None:
    refused = httpx.get(f"{used.url}/console/overview?window=3d", timeout=30)
    assert refused.status_code == 400


def test_a_stream_gets_new_points_only_and_all_totals(used: Running) -> None:
    with following(used.url, "overview") as stream:
        first, second = next(stream).data, next(stream).data
    assert first["window"] == second["window"] == "2m"
    assert second["totals"]["requests"] == first["totals"]["requests"] == 4
    assert (first["whole"], second["whole"]) == (True, False)
    assert 1 <= len(second["points"]) <= 3
    assert second["points"][0]["at"] > first["points"][-1]["at"]


def test_keys_are_counted_apart() -> None:
    keys = ServerSettings(keys=tuple(KeySettings(name=n, hash=hash_key(f"ft-{n}")) for n in ("alice", "bob")))
    noted: list[History] = []

    def build(*arguments: Any, **options: Any) -> Any:
        app = build_app(*arguments, **options)
        noted.extend(arguments[0].metrics.observers)
        return app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("http_server.build_app", build)
        with serving(settings=keys) as running:
            for name, times in (("alice", 2), ("bob", 1)):
                for _ in range(times):
                    assert complete(running, f"ft-{name}", max_tokens=7, ignore_eos=True).status_code == 200
    usage = noted[0].usage()
    assert {name: (use.requests, use.tokens) for name, use in usage.items()} == {
        hash_key("ft-alice"): (2, 14),
        hash_key("ft-bob"): (1, 7),
    }
    assert all(abs(time.time() - (use.last_used or 0)) < 60 for use in usage.values())


def test_a_server_that_is_killed_keeps_what_it_had_written(tmp_path: Path) -> None:
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=512)
    settings = tmp_path / "foredraft.toml"
    settings.write_text(SETTINGS)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / FILE_NAME).write_bytes(b"this is not a database" * 100)
    with served(settings, cache) as (url, process):
        body = {"prompt": "one", "max_tokens": 9, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        assert get(url)["kept"], get(url)["not_kept"]
        for _ in range(300):
            with closing(sqlite3.connect(cache / FILE_NAME)) as file:
                if file.execute("SELECT sum(tokens) FROM usage").fetchone()[0]:
                    break
            time.sleep(0.1)
        kill(process)
    assert (cache / f"{FILE_NAME}.corrupt").exists()
    with served(settings, cache) as (url, _):
        found = get(url, "?window=all")
    assert (found["totals"]["requests"], found["totals"]["generated_tokens"]) == (1, 9)


class _Stream:
    """What a stream of the topic was sent, one after the other."""

    def __init__(self, history: History) -> None:
        self.topic = LiveOverview(history)
        self.sent: Overview | None = None

    def read(self) -> list[float] | None:
        found = asyncio.run(self.topic.read(None, self.sent))  # type: ignore[arg-type]
        if found is None:
            return None
        assert isinstance(found, Overview)
        self.sent = found
        return [point.at - START for point in found.points]


def test_each_stream_gets_each_point_once() -> None:
    clock = Clock()
    history = history_of(clock)
    stream = _Stream(history)
    assert stream.read() == []
    passes(history, clock, 2)
    assert stream.read() == [1, 2]
    assert stream.read() is None
    passes(history, clock, 3)
    assert stream.read() == [3, 4, 5]
