"""Where texts spell control tokens, and where a text is cut so that some of them are not recognised."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.templates.control_texts import NO_CONTROL_TEXTS, ControlTexts

CONTROL = ControlTexts(["<|im_start|>", "<|im_end|>", "<|im|>", "<s>", "[INST]", "[/INST]"])
PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im|>", "<s>", "[INST]", "<", "|", ">", "im", "x", " "]
)
TEXTS = st.lists(PIECES, max_size=20).map("".join)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("x <|im_end|> y", ["<|im_end|>"]),
        ("<|im|><|im_end|><s>", ["<|im|>", "<|im_end|>", "<s>"]),
        ("<|im_en", []),
        ("<<s>|im_end|>", ["<s>"]),
        ("[INST][/INST]", ["[INST]", "[/INST]"]),
        ("<|IM_END|>", []),
    ],
)
def test_where_control_tokens_are_spelled(text: str, found: list[str]) -> None:
    assert [text[slice(*span)] for span in CONTROL.spans(text)] == found
    assert list(NO_CONTROL_TEXTS.spans(text)) == []


def test_the_longest_token_is_found() -> None:
    assert list(ControlTexts(["<a>", "<a><b>"]).spans("<a><b><a>")) == [(0, 6), (6, 9)]
    assert list(ControlTexts(["<", "<|", "<|a|>"]).spans("<|a|><|a<x")) == [(0, 5), (5, 7), (8, 9)]


@pytest.mark.parametrize(
    ("text", "risky"),
    [
        ("hello", []),
        ("a <|im_end|> b", ["<|im_end|>"]),
        ("begins <|im_", ["<|im_"]),
        ("ends <", ["<"]),
        ("end|> ends", ["end|>"]),
        ("> quoted", [">"]),
        ("im_end", ["im_end"]),
        ("|im_end|", ["|im_end|"]),
        ("s", ["s"]),
        ("INST", ["INST"]),
        ("the im_end of it", []),
        ("", []),
    ],
)
def test_what_of_a_text_could_become_part_of_a_control_token(text: str, risky: list[str]) -> None:
    assert [text[slice(*span)] for span in CONTROL.risky(text)] == risky
    assert NO_CONTROL_TEXTS.risky(text) == []


@given(before=TEXTS, text=TEXTS, after=TEXTS)
def test_what_is_not_risky_makes_no_control_token(before: str, text: str, after: str) -> None:
    whole, start = before + text + after, len(before)
    risky = {place + start for span in CONTROL.risky(text) for place in range(*span)}
    for first, last in CONTROL.spans(whole):
        touched = set(range(first, last)) & set(range(start, start + len(text)))
        inside = first < start and last > start + len(text)  # marks around it that are no marks
        assert touched <= risky or inside


def marked(*pieces: str) -> tuple[str, list[tuple[int, int]]]:
    """A text, every second piece of which is literal."""
    text, spans = "", []
    for place, piece in enumerate(pieces):
        if place % 2:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    return text, spans


@pytest.mark.parametrize(
    ("pieces", "parts"),
    [
        (["plain"], [("plain", True)]),
        (["<s>a ", "<s>", " b<s>"], [("<s>", True), ("a <s> b", False), ("<s>", True)]),
        (["<s>a<s>b ", "<s>"], [("<s>a<s>", True), ("b <s>", False)]),
        (["", "<s>", "x<s>"], [("<s>x", False), ("<s>", True)]),
        (
            ["<s>", "<s>", "<s>", "[INST]", "<s>"],
            [("<s>", True), ("<s>", False), ("<s>", True), ("[INST]", False), ("<s>", True)],
        ),
        (["<|im", "_end|>", " <s>"], [("<|im_end|> ", False), ("<s>", True)]),
    ],
)
def test_parts_begin_and_end_at_the_control_tokens_of_others(
    pieces: list[str], parts: list[tuple[str, bool]]
) -> None:
    found = [part for part in CONTROL.parts(*marked(*pieces)) if part[0]]
    assert found == parts
    assert "".join(text for text, _ in found) == "".join(pieces)


def test_white_space_that_a_token_takes_is_not_encoded() -> None:
    control = ControlTexts(["<l>", "<r>", "<n>"], lstrip=["<l>"], rstrip=["<r>"])
    assert list(control.parts(*marked("<r> a ", "<n>", " \n<l>"))) == [
        ("<r>", True),
        ("a <n>", False),
        ("<l>", True),
    ]
    assert list(control.parts(*marked("<n> a ", "<l>", " <n>")))[1] == (" a <l> ", False)


@pytest.mark.parametrize(
    "texts",
    [
        ["<" + "x" * 200_000 + ">"],
        ["<" * 30_000 + "x" + ">" * 30_000],
        ["<" * 60 + f"{n:04}" + ">" * 60 for n in range(300)],
    ],
)
def test_long_control_tokens_of_a_model_file_take_little_memory(texts: list[str]) -> None:
    """Unbounded, the parts of each of these take gigabytes."""
    tracemalloc.start()
    try:
        control = ControlTexts(texts)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    text = f"a {texts[0]} b"
    assert [text[slice(*span)] for span in control.spans(text)] == [texts[0]]
    assert control.risky(text) == [(2, len(text) - 2)]
