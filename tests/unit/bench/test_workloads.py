"""Prompts from files: the form, what is said about bad rows, and choosing some of them evenly."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from foredraft.bench.workloads import PromptCase, load_prompts, select, shipped_prompts
from foredraft.errors import ConfigError


def write(folder: Path, *rows: object, name: str = "own.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def case(name: str, category: str) -> PromptCase:
    return PromptCase(name, category, ("Say something.",))


def test_the_set_that_ships_has_several_prompts_in_each_of_many_categories() -> None:
    cases = shipped_prompts()
    by_category = Counter(case.category for case in cases)
    assert set(by_category) >= {"chat", "code", "edit", "math", "summary", "qa"}
    assert min(by_category.values()) >= 3
    assert len({case.id for case in cases}) == len({case.turns for case in cases}) == len(cases)
    assert load_prompts() == cases


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"id": "a/1", "category": "a", "turns": ["One\u2028line", "And then?"]},
        "",
        {"id": 7, "category": "b", "turns": ["Two"], "more": "is ignored"},
    )
    assert load_prompts(path) == [
        PromptCase("a/1", "a", ("One\u2028line", "And then?")),
        PromptCase("7", "b", ("Two",)),
    ]


def test_a_line_separator_inside_a_text_ends_no_row(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('\ufeff{"id": "a", "category": "a", "turns": ["One\u2028line"]}\r\n', encoding="utf-8")
    assert load_prompts(path)[0].turns == ("One\u2028line",)


def test_all_files_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, {"id": "2", "category": "b", "turns": ["x"]}, name="second.jsonl")
    write(tmp_path, {"id": "1", "category": "a", "turns": ["x"]}, name="first.jsonl")
    (tmp_path / "README.md").write_text("Not JSON.")
    assert [case.id for case in load_prompts(tmp_path)] == ["1", "2"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "a JSON object is expected"),
        ({"category": "a", "turns": ["x"]}, "'id'"),
        ({"id": " ", "category": "a", "turns": ["x"]}, "'id'"),
        ({"id": True, "category": "a", "turns": ["x"]}, "'id'"),
        ({"id": "1", "turns": ["x"]}, "'category'"),
        ({"id": "1", "category": "a"}, "'turns'"),
        ({"id": "1", "category": "a", "turns": []}, "'turns'"),
        ({"id": "1", "category": "a", "turns": "x"}, "'turns'"),
        ({"id": "1", "category": "a", "turns": ["x", 2]}, "'turns'"),
        ({"id": "1", "category": "a", "turns": ["  "]}, "'turns'"),
        ({"id": "ok", "category": "a", "turns": ["again"]}, "taken already, in"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: object, said: str) -> None:
    path = write(tmp_path, {"id": "ok", "category": "a", "turns": ["x"]}, row)
    with pytest.raises(ConfigError) as caught:
        load_prompts(path)
    assert f"{path}, line 2" in caught.value.message
    assert said in caught.value.message
    assert caught.value.hint


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no prompt file"):
        load_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match=r"no \.jsonl file"):
        load_prompts(tmp_path)
    empty = write(tmp_path, "", name="empty.jsonl")
    with pytest.raises(ConfigError, match="no prompts"):
        load_prompts(empty)
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_prompts(binary)


def test_a_limit_is_spread_over_the_categories() -> None:
    cases = [case("a1", "a"), case("a2", "a"), case("a3", "a"), case("b1", "b"), case("c1", "c")]
    assert [chosen.id for chosen in select(cases, limit=4)] == ["a1", "b1", "c1", "a2"]
    assert [chosen.id for chosen in select(cases, limit=2)] == ["a1", "b1"]
    assert len(select(cases, limit=99)) == len(cases)
    assert select(cases) == cases


def test_categories_are_chosen_by_name() -> None:
    cases = [case("a1", "a"), case("b1", "b"), case("a2", "a")]
    assert [chosen.id for chosen in select(cases, categories=["a"])] == ["a1", "a2"]
    assert [chosen.id for chosen in select(cases, categories=["b", "a"], limit=2)] == ["a1", "b1"]
    with pytest.raises(ConfigError, match="'z'") as caught:
        select(cases, categories=["a", "z"])
    assert caught.value.hint == "There are: a, b."
