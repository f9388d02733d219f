"""The speculation string and the options of its stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.config import AUTO, OFF, Speculation, Stage, as_speculation, parse_speculation, read_options
from foredraft.errors import SpeculationStringError

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True).filter(
    lambda name: name not in (AUTO, OFF, "none")
)
VALUES = (
    st.text(min_size=1, max_size=12).map(str.strip).filter(lambda text: text and not set(text) & set(",;"))
)
STAGES = st.builds(Stage, NAMES, st.dictionaries(NAMES, VALUES, max_size=3))


@st.composite
def speculations(draw: st.DrawFn) -> Speculation:
    stages = draw(st.lists(STAGES, max_size=4, unique_by=lambda stage: stage.name))
    return Speculation(draw(st.booleans()), tuple(stages))


@given(speculations())
def test_a_speculation_survives_being_written_and_read(speculation: Speculation) -> None:
    text = str(speculation)
    assert parse_speculation(text) == speculation
    assert str(parse_speculation(text)) == text


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = parse_speculation(text)
    except SpeculationStringError:
        return
    assert parse_speculation(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "speculation"),
    [
        ("auto", Speculation()),
        ("off", Speculation(adaptive=False)),
        ("none", Speculation(adaptive=False)),
        ("suffix", Speculation(False, (Stage("suffix"),))),
        ("suffix:max=8", Speculation(False, (Stage("suffix", {"max": "8"}),))),
        ("suffix;auto", Speculation(True, (Stage("suffix"),))),
        (
            " suffix : max = 8 , min=2 ; draft-model:model=C:\\m.gguf;",
            Speculation(
                False,
                (Stage("suffix", {"max": "8", "min": "2"}), Stage("draft-model", {"model": "C:\\m.gguf"})),
            ),
        ),
        ("a:key=x=y", Speculation(False, (Stage("a", {"key": "x=y"}),))),
    ],
)
def test_reading(text: str, speculation: Speculation) -> None:
    assert parse_speculation(text) == speculation


def test_off_is_neither_adaptive_nor_has_stages() -> None:
    assert parse_speculation("off").off
    assert not parse_speculation("auto").off
    assert not parse_speculation("suffix").off
    assert str(Speculation(adaptive=False)) == "off"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" ; ", "empty"),
        ("off;suffix", "'off' cannot be combined"),
        ("auto;none", "'off' cannot be combined"),
        ("suffix;suffix:max=3", "named twice"),
        ("suffix:max", "'max'"),
        ("suffix:=3", "'=3'"),
        ("suffix:max=", "'max='"),
        ("auto:max=3", "'auto' has no options"),
        ("off:max=3", "'off' has no options"),
    ],
)
def test_what_cannot_be_meant(text: str, says: str) -> None:
    with pytest.raises(SpeculationStringError, match=says):
        parse_speculation(text)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(SpeculationStringError):
        parse_speculation("suffix:max=3,max=5")


def test_a_speculation_or_its_text() -> None:
    speculation = Speculation(False, (Stage("suffix"),))
    assert as_speculation(speculation) is speculation
    assert as_speculation("suffix") == speculation


@pytest.mark.parametrize("value", [None, True, 4, ["suffix"], b"auto", Stage("suffix")])
def test_what_is_neither_a_speculation_nor_text(value: object) -> None:
    with pytest.raises(SpeculationStringError, match="not a speculation string") as caught:
        as_speculation(value)
    assert f"speculate={value!r}" in caught.value.message
    assert "'auto', 'off'" in (caught.value.hint or "")


def test_a_bad_speculation_string_is_still_refused() -> None:
    with pytest.raises(SpeculationStringError, match="empty"):
        as_speculation(" ")


# --- a stage's options ---------------------------------------------------------------------------------

DEFAULTS: dict[str, int | float | str] = {"n": 12, "share": 0.5, "file": ""}


def test_options_over_defaults() -> None:
    assert read_options("d", {}, DEFAULTS) == DEFAULTS
    read = read_options("d", {"n": "3", "share": "1", "file": "7"}, DEFAULTS)
    assert read == {"n": 3, "share": 1.0, "file": "7"}
    assert [type(value) for value in read.values()] == [int, float, str]
    assert DEFAULTS == {"n": 12, "share": 0.5, "file": ""}


def test_an_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(SpeculationStringError, match="'d' has no option 'm'") as caught:
        read_options("d", {"n": "1", "m": "2"}, DEFAULTS)
    assert caught.value.hint == "Its options are: n, share, file."
    with pytest.raises(SpeculationStringError) as caught:
        read_options("d", {"m": "2"}, {})
    assert caught.value.hint == "Its options are: none."


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n": "three"}, "not a whole number"),
        ({"n": "1.5"}, "not a whole number"),
        ({"share": "half"}, "not a number"),
        ({"n": "-1"}, "must not be negative"),
        ({"share": "-0.1"}, "must not be negative"),
    ],
)
def test_values_that_do_not_fit(options: dict[str, str], says: str) -> None:
    with pytest.raises(SpeculationStringError, match=says):
        read_options("d", options, DEFAULTS)
