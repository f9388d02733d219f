"""What is said of a server's texts and prompts."""

from __future__ import annotations

from foredraft.bench.against_notes import server_notes
from foredraft.bench.results import Row, Sample


def row(prompt: str, setting: str, text: str, tokens: int = 40, repeat: int = 0) -> Row:
    return Row(prompt, "c", setting, repeat, Sample(text=text, count=9, decode_ms=1.0, prompt_tokens=tokens))


def test_the_same_texts_and_prompts_need_no_note() -> None:
    rows = [row("a", "off", "x"), row("a", "theirs", "x"), row("b", "off", "y"), row("b", "auto", "z")]
    assert server_notes(rows, "theirs", "off") == []


def test_texts_that_differ_are_counted() -> None:
    rows = [row(name, "off", "x") for name in "abc"]
    rows += [row("a", "theirs", "x"), row("b", "theirs", "y"), row("b", "theirs", "x", repeat=1)]
    [note] = server_notes(rows, "theirs", "off")
    assert note.startswith("theirs: 1 of 2 texts are not those of off.")
    assert "no error of either" in note


def test_prompts_of_other_lengths_are_another_template() -> None:
    rows = [row("a", "off", "x"), row("a", "theirs", "x", tokens=43), row("b", "off", "y")]
    rows += [row("b", "theirs", "y", tokens=44)]
    [note] = server_notes(rows, "theirs", "off")
    assert "a has 43 tokens there and 40 here" in note
    assert "chat template" in note


def test_a_server_that_does_not_count_prompts() -> None:
    assert server_notes([row("a", "off", "x"), row("a", "theirs", "x", tokens=0)], "theirs", "off") == []
