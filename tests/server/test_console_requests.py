"""The console's requests: what runs and what has ended, for whom, stopping, and recorded texts."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from event_streams import following
from foredraft import Engine
from foredraft.engine.speculation import REASON_CODES
from foredraft.server import pool
from foredraft.server.auth import Caller, hash_key, new_key
from foredraft.server.console import request_book
from foredraft.server.console.request_book import MOST_ENDED, MOST_REFUSED, RequestBook
from foredraft.server.metrics import Watch
from foredraft.server.request_log import Entry
from foredraft.server.settings import KeySettings, ServerSettings
from foredraft.server.transcript import MOST_TEXT, Transcript
from foredraft.types import Event, TokenEvent
from http_server import Running, serving

ALICE, BOB, ADMIN = new_key(), new_key(), new_key()
SETTINGS = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)), KeySettings(name="bob", hash=hash_key(BOB))),
    admin_key_hash=hash_key(ADMIN),
)
SECRET = "the word of alice"
CHAT = {"messages": [{"role": "user", "content": SECRET}], "temperature": 0}
API_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, "max_tokens": 3500}),
    "completions": ("/v1/completions", {"prompt": SECRET, "temperature": 0, "max_tokens": 3500}),
    "responses": ("/v1/responses", {"input": SECRET, "temperature": 0, "max_output_tokens": 3500}),
    "messages": ("/v1/messages", {**CHAT, "model": "fake", "max_tokens": 3500}),
}


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(settings=SETTINGS, end=-50.0) as running:
        yield running


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of some milliseconds, so that there is something to stop."""
    step = Engine.step

    def slowly(engine: Engine) -> list[Event]:
        time.sleep(0.004)
        return step(engine)

    monkeypatch.setattr(Engine, "step", slowly)


def ask(running: Running, key: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {"x-api-key": key, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.post(f"{running.url}{path}", json=body, headers=named, timeout=60)


def shown(running: Running, key: str = ADMIN) -> dict[str, Any]:
    reply = httpx.get(f"{running.url}/console/requests", headers={"x-api-key": key}, timeout=30)
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    return found


def until(found: Callable[[], Any]) -> Any:
    for _ in range(1000):
        if value := found():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not come")


def row_of(running: Running, request_id: str, key: str = ADMIN, part: str = "finished") -> Any:
    return until(lambda: next((r for r in shown(running, key)[part] if r["id"] == request_id), None))


def record(running: Running, *, on: bool, key: str = ADMIN) -> int:
    reply = httpx.put(f"{running.url}/console/recording", json={"on": on}, headers={"x-api-key": key})
    return reply.status_code


# --- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", API_CALLS)
def test_an_answer_has_a_row_with_its_figures(locked: Running, api: str) -> None:
    path, body = API_CALLS[api]
    short = {**body, next(name for name in body if name.startswith("max_")): 40}
    ask(locked, ALICE, path, short, x_request_id=f"one-{api}")
    row = row_of(locked, f"one-{api}")
    assert (row["api"], row["key"], row["model"], row["state"], row["status"]) == (
        api,
        "alice",
        "fake",
        "done",
        200,
    )
    assert (row["completion_tokens"], row["finish"], row["answers"]) == (40, "length", 1)
    assert row["prompt_tokens"] >= len(SECRET)
    assert row["tokens_per_s"] > 0
    assert row["duration_ms"] >= row["first_token_ms"] > 0
    assert row["error"] is row["texts"] is None
    assert abs(row["at"] - time.time()) < 300


def test_several_answers_are_one_row(locked: Running) -> None:
    body = {**CHAT, "max_tokens": 5, "n": 3}
    ask(locked, ALICE, "/v1/chat/completions", body, x_request_id="three")
    row = row_of(locked, "three")
    assert (row["answers"], row["completion_tokens"]) == (3, 15)
    ask(locked, ALICE, "/v1/chat/completions", {**body, "n": 1}, x_request_id="single")
    assert row_of(locked, "single")["prompt_tokens"] == row["prompt_tokens"], "the prompt counts once"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("path", ["/v1/chat%2Fcompletions", "/v1/%63ompletions", "/v1/completions//"])
def test_however_its_path_is_spelt_a_request_is_seen_and_stopped(locked: Running, path: str) -> None:
    body = {**CHAT, "max_tokens": 3500} if "chat" in path else {"prompt": "spelt", "max_tokens": 3500}
    url = httpx.URL(locked.url).copy_with(raw_path=path.encode())
    name, answers = f"spelt-{len(path)}", list[httpx.Response]()
    headers = {"x-api-key": ALICE, "x-request-id": name}
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(url, json=body, headers=headers, timeout=60))
    )
    asking.start()
    row = until(lambda: row_of(locked, name, part="running"))
    assert row["api"] == ("chat" if "chat" in path else "completions")
    assert stop(locked, name, ADMIN).status_code == 200
    asking.join()
    assert answers[0].status_code == 200


def test_why_nothing_was_drafted_has_a_code() -> None:
    with serving(speculate="auto") as running:
        ask(running, "", "/v1/completions", {"prompt": "x", "max_tokens": 3}, x_request_id="a")
        row = row_of(running, "a", "")
    assert row["not_drafting"]
    assert row["not_drafting_code"] in {*REASON_CODES.values(), None}
    assert {"measuring", "back_off", "nothing_found"} <= set(REASON_CODES.values())


def test_drafts_are_counted(locked: Running) -> None:
    body = {"prompt": "abc abc abc abc abc ", "max_tokens": 600, "temperature": 0}
    ask(locked, ALICE, "/v1/completions", body, x_request_id="drafts")
    row = row_of(locked, "drafts")
    drafted = sum(each["drafted"] for each in row["drafters"].values())
    assert drafted > 0
    accepted = sum(each["accepted"] for each in row["drafters"].values())
    assert row["acceptance"] == pytest.approx(accepted / drafted)
    assert row["not_drafting"] is row["not_drafting_code"] is None


def test_refused_requests_are_rows_of_the_admin(locked: Running) -> None:
    wrong = {**CHAT, "max_tokens": 16.5}
    ask(locked, ALICE, "/v1/chat/completions", wrong, x_request_id="wrong")
    ask(locked, "ft-nobody", "/v1/chat/completions", CHAT, x_request_id="nobody")
    row = row_of(locked, "nobody")
    assert (row["status"], row["key"], row["code"]) == (401, "", "invalid_api_key")
    assert row_of(locked, "wrong", ALICE)["status"] == 400
    for key in (ALICE, BOB):
        assert "nobody" not in {each["id"] for each in shown(locked, key)["finished"]}


def test_what_polls_is_no_row(locked: Running) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/v1/speculation", "/console/session", "/"):
        httpx.get(f"{locked.url}{path}", headers={"x-api-key": ALICE, "x-request-id": "poll"}, timeout=30)
    httpx.put(
        f"{locked.url}/console/recording", json={}, headers={"x-api-key": ALICE, "x-request-id": "poll"}
    )
    ask(locked, ALICE, "/console/requests/none/stop", {}, x_request_id="poll")
    ask(locked, ALICE, "/v1/completions", {"prompt": "x", "max_tokens": 1}, x_request_id="after")
    row_of(locked, "after")
    found = shown(locked)
    assert "poll" not in {each["id"] for each in [*found["finished"], *found["running"]]}


def test_one_key_does_not_see_anothers_requests(locked: Running) -> None:
    ask(locked, ALICE, "/v1/completions", {"prompt": "x", "max_tokens": 1}, x_request_id="hers")
    row_of(locked, "hers")
    found = shown(locked, BOB)
    assert "alice" not in {each["key"] for each in [*found["finished"], *found["running"]]}
    one = httpx.get(f"{locked.url}/console/requests/hers", headers={"x-api-key": BOB}, timeout=30)
    assert one.status_code == 404


# --- running, and stopped --------------------------------------------------------------------------------


class Asking:
    """A request on a thread of its own."""

    def __init__(self, running: Running, api: str, name: str, **options: Any) -> None:
        path, body = API_CALLS[api]
        self.reply: httpx.Response | None = None

        def go() -> None:
            self.reply = ask(running, ALICE, path, {**body, **options}, x_request_id=name)

        self._thread = threading.Thread(target=go)
        self._thread.start()

    def result(self) -> httpx.Response:
        self._thread.join(60)
        assert self.reply is not None
        return self.reply


def stop(running: Running, request_id: str, key: str) -> httpx.Response:
    return httpx.post(
        f"{running.url}/console/requests/{request_id}/stop", headers={"x-api-key": key}, timeout=30
    )


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", API_CALLS)
def test_a_stopped_answer_keeps_its_text_and_says_who_stopped_it(
    locked: Running, api: str, stream: bool
) -> None:
    name = f"stop-{api}-{stream}"
    asking = Asking(locked, api, name, stream=stream)
    live = until(
        lambda: next(
            (r for r in shown(locked)["running"] if r["id"] == name and r["completion_tokens"] > 20), None
        )
    )
    assert live["state"] == "running"
    assert live["tokens_per_s"] > 0
    assert live["prompt_tokens"] >= len(SECRET)
    assert stop(locked, name, BOB).status_code == 404, "not Bob's"
    assert stop(locked, name, ADMIN).status_code == 200
    reply = asking.result()
    assert reply.status_code == 200
    notice = "The administrator stopped this answer."
    if stream:
        text = reply.text
        ends = {
            "chat": '"finish_reason":"length","stop_reason":"stopped"',
            "completions": '"stop_reason":"stopped"',
            "responses": "event: response.incomplete",
            "messages": '"stop_reason":"max_tokens"',
        }
        assert ends[api] in text
        assert ("[DONE]" in text) == (api in ("chat", "completions"))
        if api in ("responses", "messages"):
            assert notice in text
    else:
        answer = reply.json()
        assert (answer["notice"], answer["notice_code"]) == (notice, "stopped_by_admin")
        said = {
            "chat": lambda: answer["choices"][0]["message"]["content"],
            "completions": lambda: answer["choices"][0]["text"],
            "responses": lambda: answer["output"][0]["content"][0]["text"],
            "messages": lambda: answer["content"][0]["text"],
        }[api]()
        assert len(said) > 20
        end = answer["choices"][0]["finish_reason"] if "choices" in answer else None
        end = end or answer.get("status") or answer["stop_reason"]
        assert end in ("length", "incomplete", "max_tokens")
    row = row_of(locked, name)
    assert (row["finish"], row["error"], row["status"]) == ("stopped", notice, 200)
    assert row["code"] == "stopped_by_admin"
    assert 20 < row["completion_tokens"] < 3500


@pytest.mark.usefixtures("slow")
def test_a_waiting_request_can_be_stopped_by_its_owner() -> None:
    with serving(settings=SETTINGS, end=-50.0, sequences=1) as running:
        first = Asking(running, "chat", "first")
        until(lambda: [r for r in shown(running, ALICE)["running"] if r["state"] == "running"])
        second = Asking(running, "completions", "second")
        until(lambda: [r for r in shown(running, ALICE)["running"] if r["state"] == "waiting"])
        assert stop(running, "second", ALICE).status_code == 200
        answer = second.result().json()
        assert answer["choices"][0]["text"] == ""
        assert answer["notice"] == "The owner of its key stopped this answer."
        assert answer["notice_code"] == "stopped_by_owner"
        assert row_of(running, "first", ALICE, "running")["state"] == "running", "others go on"
        assert stop(running, "first", ALICE).status_code == 200
        first.result()
        assert stop(running, "first", ALICE).status_code == 404, "it is over"


@pytest.mark.usefixtures("slow")
def test_all_answers_of_a_request_are_stopped(locked: Running) -> None:
    asking = Asking(locked, "chat", "stop-three", n=3)
    until(lambda: [r for r in shown(locked)["running"] if r["completion_tokens"] > 5])
    stop(locked, "stop-three", ADMIN)
    choices = asking.result().json()["choices"]
    assert [choice["stop_reason"] for choice in choices] == ["stopped"] * 3


# --- texts -----------------------------------------------------------------------------------------------


def test_texts_are_kept_for_the_admin_while_recording_is_on_and_dropped_after_it(locked: Running) -> None:
    body = {**CHAT, "max_tokens": 1500}
    assert record(locked, on=True, key=ALICE) == 403
    assert record(locked, on=True) == 200
    answer = ask(locked, ALICE, "/v1/chat/completions", body, x_request_id="kept").json()
    text = answer["choices"][0]["message"]["content"]
    row = row_of(locked, "kept")
    assert SECRET in row["texts"]["prompt"]
    assert row["texts"]["answer"] == text[:1000], "a list has the beginning"
    whole = httpx.get(f"{locked.url}/console/requests/kept", headers={"x-api-key": ADMIN}).json()
    assert whole["texts"]["answer"] == text
    assert row_of(locked, "kept", ALICE)["texts"] is None, "only the admin"
    assert shown(locked)["recording"] is True
    session = httpx.get(f"{locked.url}/console/session", headers={"x-api-key": ALICE}).json()
    assert session["recording"] is True
    assert record(locked, on=False) == 200
    assert SECRET not in json.dumps(shown(locked))
    record(locked, on=True)
    assert row_of(locked, "kept")["texts"] is None, "dropped, not hidden"
    record(locked, on=False)
    ask(locked, ALICE, "/v1/chat/completions", body, x_request_id="later")
    assert row_of(locked, "later")["texts"] is None


# --- the book by itself ----------------------------------------------------------------------------------

ANYBODY = Caller("admin", "admin", admin=True)


def test_switching_recording_off_while_a_prompt_is_read_fails_no_request(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def beginning(_tokenizer: object, _prompt: object, _images: object) -> str:
        reading.set()
        assert go_on.wait(20)
        return SECRET

    monkeypatch.setattr(pool, "beginning", beginning)
    record(locked, on=True)
    answers = list[httpx.Response]()
    body = {"prompt": SECRET, "max_tokens": 3}
    asking = threading.Thread(
        target=lambda: answers.append(ask(locked, ALICE, "/v1/completions", body, x_request_id="off"))
    )
    asking.start()
    assert reading.wait(20)
    record(locked, on=False)
    go_on.set()
    asking.join()
    assert answers[0].status_code == 200
    assert row_of(locked, "off")["texts"] is None


def entry(name: str, size: int = 0) -> Entry:
    made = Entry(name, "POST", "/v1/completions", "/v1/completions")
    made.caller = made.identity = "alice"
    if size:
        made.transcript = Transcript(prompt="x" * size)
    return made


def test_what_is_kept_is_bounded_and_a_flood_of_refusals_pushes_no_answer_out() -> None:
    book = RequestBook()
    for number in range(MOST_ENDED + 50):
        answered = entry(f"a{number}")
        book.begin(answered)
        answered.watches.append(Watch(0.0))
        book.end(answered, 200)
    for number in range(5000):
        refused = entry(f"r{number}")
        book.begin(refused)
        book.end(refused, 429)
    rows = book.requests(ANYBODY).finished
    assert sum(row.status == 200 for row in rows) == MOST_ENDED
    assert sum(row.status == 429 for row in rows) == MOST_REFUSED
    assert rows[0].id == "r4999", "the newest first"
    assert book.running == 0


def test_recorded_texts_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_book, "MOST_RECORDED", 1000)
    book = RequestBook()
    for number in range(5):
        answered = entry(f"a{number}", size=400)
        answered.watches.append(Watch(0.0))
        book.end(answered, 200)
    kept = [row.id for row in book.requests(ANYBODY).finished if row.texts is not None]
    assert sorted(kept) == ["a3", "a4"], "the oldest go"


def test_a_transcript_holds_the_first_answer_up_to_its_limit() -> None:
    transcript = Transcript()
    for source in ("one", "two"):
        for _ in range(30):
            transcript.add(source, [TokenEvent(1, 1, source[0] * 1000, "target")])
    assert transcript.answer == "o" * MOST_TEXT
    assert transcript.size == MOST_TEXT


def test_the_stream_says_what_the_path_says_and_the_log_is_the_admins(locked: Running) -> None:
    ask(locked, ALICE, "/v1/completions", {"prompt": "x", "max_tokens": 1}, x_request_id="streamed")
    row_of(locked, "streamed")
    for key, log in ((ADMIN, "log"), (ALICE, "error")):
        with following(locked.url, "requests,log", key) as stream:
            found = dict(tuple(each) for each in islice(stream, 2))
        assert found["requests"] == shown(locked, key)
        assert set(found) == {"requests", log}


def test_of_the_log_a_stream_gets_each_line_once(locked: Running) -> None:
    logging.getLogger("foredraft.server").warning("before")
    with following(locked.url, "log", ADMIN) as stream:
        first = next(stream).data
        assert first["whole"]
        assert first["lines"][-1]["text"] == "before"
        logging.getLogger("foredraft.server").warning("after")
        second = next(stream).data
    assert not second["whole"]
    assert second["lines"][0]["text"] == "after"


@pytest.mark.usefixtures("slow")
def test_the_stream_goes_on_with_what_has_changed(locked: Running) -> None:
    ask(locked, ALICE, "/v1/completions", {"prompt": "x", "max_tokens": 1}, x_request_id="before")
    row_of(locked, "before")
    with following(locked.url, "requests", ADMIN) as stream:
        first = next(stream).data
        assert first["whole"]
        assert "before" in {row["id"] for row in first["finished"]}
        ask(locked, ALICE, "/v1/completions", {"prompt": "x", "max_tokens": 500}, x_request_id="after")
        ended = first["ended"]
        for _, event in stream:
            assert not event["whole"]
            assert event["ended"] - ended == len(event["finished"])
            ended = event["ended"]
            if event["finished"]:
                break
        assert [row["id"] for row in event["finished"]] == ["after"]
        assert ended == first["ended"] + 1
        record(locked, on=True)
        record(locked, on=False)
        assert shown(locked, ADMIN)["ended"] == ended, "reading and settings are no requests"


def test_news_are_all_rows_when_texts_may_have_been_dropped() -> None:
    book = RequestBook()
    answered = entry("a", size=4)
    answered.watches.append(Watch(0.0))
    book.end(answered, 200)
    sent = book.news(ANYBODY, None)
    assert sent is not None
    assert [row.id for row in sent.finished] == ["a"]
    assert book.news(ANYBODY, sent) is None, "nothing has changed"
    book.recording = True
    recorded = book.news(ANYBODY, sent)
    assert recorded is not None
    assert recorded.whole
    refused = entry("b", size=0)
    book.begin(refused)
    book.end(refused, 400)
    news = book.news(ANYBODY, recorded)
    assert news is not None
    assert (news.whole, [row.id for row in news.finished]) == (False, ["b"])
