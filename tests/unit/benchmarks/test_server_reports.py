"""Figures of the server's measuring scripts, from answers with given times."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import gguf_factory
import server_load
import server_overhead
import server_peers
import server_soak
from foredraft.bench.workloads import PromptCase
from server_client import Answer, chat_body, completion_body
from server_load import Ask, Slice
from server_peers_report import AUTO, OFF, PEER_OFF, Turn, as_markdown, summaries, texts
from server_soak_plot import binned, soak_plot


def answered(
    text: str = "abcd", *, sent: float = 0.0, first: float = 1.0, last: float = 2.0, tokens: int = 4
) -> Answer:
    """An answer whose text came in two pieces."""
    return Answer(sent, text, tokens, [(first, len(text) // 2), (last, len(text))])


# --- load ----------------------------------------------------------------------------------------------


def test_only_what_came_within_the_slice_counts() -> None:
    found = Slice("off", 2.0)
    found.take(Ask({}, "abcd"), answered(), 1.5)
    assert (found.tokens, found.rate, found.answers, found.different) == (2.0, 1.0, 1, 0)
    assert found.first == [1000.0]
    assert found.streams == [3.0]


def test_another_text_is_seen_and_so_is_an_error() -> None:
    found = Slice("auto", 1.0)
    found.take(Ask({}, "abcx"), answered(), 9.0)
    found.take(Ask({}, "abcd"), Answer(0.0, error="gone"), 9.0)
    assert (found.different, found.errors) == (1, ["gone"])


@pytest.mark.parametrize(("text", "different"), [("ab", 0), ("ax", 1)])
def test_what_a_leaver_read_is_how_the_answer_begins(text: str, different: int) -> None:
    found = Slice("auto", 1.0)
    answer = answered(text, tokens=0)
    answer.left = True
    found.take(Ask({}, "abcd"), answer, 9.0)
    assert (found.left, found.answers, found.different, found.tokens) == (1, 0, different, 0.0)


def test_both_settings_are_compared_slice_by_slice() -> None:
    tokens = {"off": (10.0, 20.0, 50.0), "auto": (12.0, 18.0, 75.0)}
    slices = {name: [Slice(name, 1.0, tokens=count) for count in counts] for name, counts in tokens.items()}
    slices["auto"][0].answers, slices["auto"][2].answers = 2, 3
    found = server_load.compared(slices)
    assert found["ratio"] == pytest.approx(1.2)
    assert found["auto"]["tokens_per_second"] == pytest.approx(35.0)
    assert (found["auto"]["answers"], found["off"]["answers"]) == (5, 0)
    assert "| 4 | auto | 35.0 | 1.200 | 0.90–1.50 |" in server_load.as_table({"4": found})


def test_both_servers_are_dealt_the_same_requests() -> None:
    bodies = server_load.bodies(["a", "b"], 8)
    assert bodies == server_load.bodies(["a", "b"], 8)
    assert sorted((body["messages"][0]["content"], body["temperature"]) for body in bodies) == [
        ("a", 0.0),
        ("a", 0.8),
        ("b", 0.0),
        ("b", 0.8),
    ]
    deck = [Ask(body, "") for body in bodies]
    hand = server_load.dealt(deck, 3)
    assert [next(hand).body for _ in range(3)] == [bodies[3], bodies[0], bodies[1]]


@pytest.mark.parametrize(("different", "code"), [(0, 0), (1, 1)])
def test_load_fails_for_a_text_that_differs(tmp_path: Path, different: int, code: int) -> None:
    args = SimpleNamespace(threads=1, tokens=8, seconds=1.0, results=tmp_path)
    slices = {name: [Slice(name, 1.0, tokens=10.0, different=different)] for name in ("off", "auto")}
    levels = {"1": server_load.compared(slices)}
    assert server_load.closing(args, levels, {}) == code  # type: ignore[arg-type]
    report = json.loads((tmp_path / "server_load.json").read_text())
    assert report["failed"] == 2 * different
    assert report["behind"] == ["x1: 1.000 < 1.15"]


# --- peers ---------------------------------------------------------------------------------------------


def turn(side: str, category: str, prompt: str, last: float, *, text: str = "abcd", number: int = 0) -> Turn:
    return Turn(side, number, category, (prompt,), (answered(text, last=last),))


def test_a_group_has_one_rate() -> None:
    group = Turn(OFF, 0, "qa", ("1", "2"), (answered(last=3.0), answered(sent=0.5, first=2.0, last=5.0)))
    assert group.rate("decode") == 6 / 4
    assert group.rate("whole") == 8 / 5
    failed = Turn(OFF, 0, "qa", ("1", "2"), (answered(), Answer(0.0, error="gone")))
    assert failed.rate("whole") is None


def test_auto_is_compared_with_the_best_peer_of_a_category() -> None:
    turns = [
        turn(OFF, "qa", "1", 4.0), turn(AUTO, "qa", "1", 3.0),
        turn(PEER_OFF, "qa", "1", 5.0), turn("ngram-mod", "qa", "1", 2.0),
        turn("ngram-mod", "qa", "1", 9.0, number=1),
        turn(OFF, "code", "2", 4.0), turn(AUTO, "code", "2", 2.0),
        turn(PEER_OFF, "code", "2", 3.0), turn("ngram-mod", "code", "2", 4.0),
    ]  # fmt: skip
    found = {
        row["category"]: row
        for row in summaries({1: turns})
        if row["side"] == AUTO and row["rate"] == "decode"
    }
    assert (found["qa"]["best_peer"], found["qa"]["of_best_peer"]) == ("ngram-mod", pytest.approx(0.5))
    assert (found["code"]["best_peer"], found["code"]["of_best_peer"]) == (PEER_OFF, pytest.approx(2.0))
    assert found["qa"]["of_peer_off"] == pytest.approx(2.0)
    assert found["qa"]["of_own_off"] == pytest.approx(1.5)
    assert found["all"]["groups"] == 2
    page = as_markdown(summaries({1: turns}), texts({1: turns}), "1 thread", ["ngram-mod"])
    assert "0.50 (ngram-mod)" in page
    assert "take time then: ngram-mod." in page


def test_another_foredraft_is_no_peer_and_is_compared_with_its_own_off() -> None:
    lasts = {OFF: 4.0, AUTO: 3.0, "bare off": 9.0, "bare auto": 3.0, PEER_OFF: 5.0}
    turns = [turn(side, "qa", "1", last) for side, last in lasts.items()]
    found = {row["side"]: row for row in summaries({1: turns}) if row["rate"] == "decode"}
    assert found["bare auto"]["of_own_off"] == pytest.approx(4.0)
    assert {row["best_peer"] for row in found.values()} == {PEER_OFF}
    turns[3] = turn("bare auto", "qa", "1", 3.0, text="other")
    assert {row["side"]: row["different"] for row in texts({1: turns})}["bare auto"] == 1


def test_every_foredraft_has_its_command() -> None:
    args = SimpleNamespace(bare=True, installation=["older=/older/python"])
    found = server_peers.foredrafts(args)  # type: ignore[arg-type]
    assert list(found) == ["foredraft", "bare", "older"]
    assert "leave_out" in found["bare"][2]
    assert found["older"] == ("/older/python", "-m", "foredraft")


@pytest.mark.parametrize(("template", "body"), [("{{ messages }}", chat_body), (None, completion_body)])
def test_a_model_without_a_chat_template_continues_text(
    tmp_path: Path, template: str | None, body: server_peers.Body
) -> None:
    model = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", chat_template=template)
    assert server_peers.body_for(model) is body


def test_a_prompt_that_one_side_cannot_do_counts_for_none() -> None:
    turns = [turn(side, "qa", prompt, 4.0) for side in (OFF, AUTO, PEER_OFF) for prompt in ("1", "2")]
    turns[0] = Turn(OFF, 0, "qa", ("1",), (Answer(0.0, error="gone"),))
    assert {row["groups"] for row in summaries({1: turns})} == {1}


def test_texts_are_compared_with_a_sides_own() -> None:
    written = {
        1: {OFF: "abcd", AUTO: "abcd", PEER_OFF: "peer", "ngram-mod": "drafted"},
        4: {OFF: "abcd", AUTO: "other", PEER_OFF: "batched", "ngram-mod": "batched"},
    }
    turns = {
        clients: [turn(side, "qa", "1", 2.0, text=text) for side, text in by_side.items()]
        for clients, by_side in written.items()
    }
    found = {(row["clients"], row["side"]): row for row in texts(turns)}
    assert {key: row["different"] for key, row in found.items()} == {
        (1, OFF): 0, (1, AUTO): 0, (1, PEER_OFF): 0, (1, "ngram-mod"): 1,
        (4, OFF): 0, (4, AUTO): 1, (4, PEER_OFF): 0, (4, "ngram-mod"): 0,
    }  # fmt: skip
    assert found[4, PEER_OFF]["different_from_alone"] == 1
    assert found[4, OFF]["different_from_alone"] == 0


def test_groups_are_of_one_category_and_full() -> None:
    cases = [PromptCase(f"{name}/{i}", name, ("?",)) for i in range(5) for name in ("qa", "code")]
    cases.append(PromptCase("rare/0", "rare", ("?",)))
    found = [[case.id for case in group] for group in server_peers.groups(cases, 2)]
    assert found == [
        ["qa/0", "qa/1"],
        ["qa/2", "qa/3"],
        ["code/0", "code/1"],
        ["code/2", "code/3"],
        ["rare/0"],
    ]


# --- soak and overhead ---------------------------------------------------------------------------------


def test_memory_counts_after_the_warm_up() -> None:
    soak = server_soak.Soak(100.0, memory=[(100.0, 10), (160.0, 100), (170.0, 104), (180.0, 102)])
    soak.health = [(101.0 + i, float(i + 1)) for i in range(100)]
    found = server_soak.verdict(soak, 60.0)
    assert found["growth"] == pytest.approx(0.04)
    assert (found["health_p50_ms"], found["health_p99_ms"], found["health_max_ms"]) == (50.0, 99.0, 100.0)


@pytest.mark.parametrize(
    ("size", "ms", "wrong", "failed"),
    [
        (104, 1.0, [], 0),
        (106, 1.0, [], 1),
        (104, 60.0, [], 1),
        (104, 1.0, ["bad"], 1),
        (200, 60.0, ["bad"], 3),
    ],
)
def test_a_soak_says_what_is_out_of_bounds(
    tmp_path: Path, size: int, ms: float, wrong: list[str], failed: int
) -> None:
    args = SimpleNamespace(warm_up=1.0, minutes=2.0, clients=1, threads=1, results=tmp_path)
    soak = server_soak.Soak(0.0, wrong=wrong, memory=[(60.0, 100), (90.0, size)], health=[(1.0, ms)])
    assert server_soak.closing(args, soak) == (1 if failed else 0)  # type: ignore[arg-type]
    assert len(json.loads((tmp_path / "server_soak.json").read_text())["failed"]) == failed
    assert (tmp_path / "server_soak.svg").read_text().startswith("<?xml")


def test_a_plot_holds_memory_and_latencies() -> None:
    svg = soak_plot(
        0.0, [(0.0, 1 << 28), (60.0, 1 << 28)], [(1.0, 2.0), (2.0, 4.0)], warm_up=30.0, limit_ms=50.0
    )
    assert "resident memory of the server" in svg
    assert "/health, p99" in svg


def test_samples_are_binned_by_time() -> None:
    samples = [(100.0, 1.0), (104.0, 3.0), (111.0, 7.0)]
    assert binned(100.0, samples, 99, 10.0) == [(5 / 60, 3.0), (15 / 60, 7.0)]


def test_the_fastest_answer_of_each_way_counts() -> None:
    found = {
        ("run", "off"): [answered(last=4.0), answered(last=3.0)],
        ("serve", "off"): [answered(last=5.0)],
        ("run", "auto"): [answered(last=2.0)],
        ("serve", "auto"): [answered("other", last=2.0)],
    }
    row = server_overhead.row(PromptCase("qa/1", "qa", ("?",)), found)
    assert row["ratios"] == {"off": pytest.approx(0.5), "auto": pytest.approx(1.0)}
    assert row["different"]
    assert row["errors"] == []
