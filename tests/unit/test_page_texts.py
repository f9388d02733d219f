"""The texts of the page: every language has every text, with the same values in it, and none is left over."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import chain

import pytest

from page_tools import PAGE

SOURCES = PAGE / "src"
LOCALES = SOURCES / "locales"
LANGUAGES = ("en", "ko", "ja", "zh", "de")
FORMS = {"en": {"one"}, "de": {"one"}, "ko": set[str](), "ja": set[str](), "zh": set[str]()}
"""Forms of a text with a count beside the usual one, by Unicode's rules for plurals."""

VIEWS = sorted(file.stem for file in (LOCALES / "en").glob("*.json"))
CODE = [file for file in SOURCES.rglob("*.ts*") if LOCALES not in file.parents]
PUT_TOGETHER = re.compile(r"`(\w+)\.((?:[^`$]|\$\{[^`}]*\})*)`")
ANY_VALUE = r"(\w+)"

others = pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "en"])
every_view = pytest.mark.parametrize("view", VIEWS)


@cache
def texts(language: str, view: str) -> dict[str, str]:
    """The texts of a view. A key twice is an error."""

    def checked(pairs: list[tuple[str, str]]) -> dict[str, str]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), f"a key is twice in {language}/{view}.json"
        return dict(pairs)

    found: dict[str, str] = json.loads(
        (LOCALES / language / f"{view}.json").read_text("utf-8"), object_pairs_hook=checked
    )
    return found


@cache
def code() -> str:
    return "\n".join(file.read_text("utf-8") for file in CODE)


def base(key: str) -> str:
    return key.split(".", maxsplit=1)[0]


def values(text: str) -> set[str]:
    return set(re.findall(r"\{(\w*)\}", text))


def test_every_language_is_loaded_with_every_view() -> None:
    assert sorted(LANGUAGES) == sorted(path.name for path in LOCALES.iterdir() if path.is_dir())
    for language in LANGUAGES:
        assert sorted(file.stem for file in (LOCALES / language).glob("*.json")) == VIEWS
        loader = (LOCALES / f"{language}.ts").read_text("utf-8")
        for view in VIEWS:
            assert f'import {view} from "./{language}/{view}.json"' in loader
        listed = re.search(r"export default \{(.*?)\}", loader, re.DOTALL)
        assert listed
        assert sorted(re.findall(r"\w+", listed[1])) == VIEWS


@others
@every_view
def test_no_text_is_missing_or_unknown(language: str, view: str) -> None:
    assert {base(key) for key in texts(language, view)} == {base(key) for key in texts("en", view)}


@pytest.mark.parametrize("language", LANGUAGES)
@every_view
def test_texts_with_a_count_have_the_forms_of_the_language(language: str, view: str) -> None:
    counted = {base(key) for key in texts("en", view) if "." in key}
    wanted = {f"{key}.{form}" for key in counted for form in FORMS[language]}
    assert {key for key in texts(language, view) if "." in key} == wanted
    assert counted <= texts(language, view).keys(), "the usual form has the key's name"


@others
@every_view
def test_the_same_values_are_in_every_language(language: str, view: str) -> None:
    for key, text in texts(language, view).items():
        told = texts("en", view)[base(key)]
        assert values(text) == values(told) or ("." in key and values(text) <= values(told)), key


@pytest.mark.parametrize("language", LANGUAGES)
@every_view
def test_texts_are_texts(language: str, view: str) -> None:
    for key, text in texts(language, view).items():
        assert text.strip() == text != "", key
        assert "  " not in text, key
        assert re.fullmatch(r"[^{}]*(?:\{\w+\}[^{}]*)*", text), f"{key}: a value is {{name}}"
        assert "..." not in text, f"{key}: an ellipsis is one character"


@others
@every_view
def test_sentences_are_translated(language: str, view: str) -> None:
    """Single words may be the same in two languages, four words in a row are not."""
    same = {key for key, text in texts(language, view).items() if text == texts("en", view).get(key)}
    assert not {key for key in same if len(re.findall(r"[A-Za-z]{2,}", texts("en", view)[key])) > 3}


@every_view
def test_no_text_is_left_over(view: str) -> None:
    """A text is used if its key is in the code, or fits one that is put together from words of the code."""
    literal = set(re.findall(rf"[\"'`]{view}\.(\w+)[\"'`]", code()))
    patterns = [
        re.compile(ANY_VALUE.join(map(re.escape, re.split(r"\$\{[^}]*\}", rest))))
        for name, rest in PUT_TOGETHER.findall(code())
        if name == view and "${" in rest
    ]
    words = set(re.findall(r"\w+", code()))
    for key in {base(key) for key in texts("en", view)} - literal:
        fits = [found for pattern in patterns if (found := pattern.fullmatch(key))]
        assert any(set(found.groups()) <= words for found in fits), f"{view}.{key} is not used"


def test_every_text_that_the_code_names_is_there() -> None:
    known = {f"{view}.{base(key)}" for view in VIEWS for key in texts("en", view)}
    named = chain.from_iterable(
        (f"{view}.{key}" for key in re.findall(rf"\bt\(\s*[\"'`]{view}\.(\w+)[\"'`]", code()))
        for view in VIEWS
    )
    assert set(named) <= known


@pytest.mark.parametrize("language", ["ja", "zh"])
@every_view
def test_marks_after_wide_characters_are_wide(language: str, view: str) -> None:
    for key, text in texts(language, view).items():
        assert not re.search(r"[\u3040-\u30ff\u4e00-\u9fff」』）”]\s?[:;?!(]", text), key
