"""Wishes about reasoning and the template's variables, judged by what the template reads."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import chat_templates as families
from foredraft.errors import RequestError
from foredraft.server.template_variables import TemplateKwargs, Wishes, template_variables
from foredraft.templates.chat import ChatTemplate

TRAITS = {
    name: ChatTemplate(getattr(families, name)).traits
    for name in (
        "CHATML",
        "GEMMA",
        "THINKS_IF_TOLD",
        "THINKS_BY_NAME",
        "THINKS_BY_EFFORT",
        "EFFORT_OR_NONE",
        "ALWAYS_THINKS",
    )
}
OFF, ON, LITTLE, MUCH = Wishes(thinks=False), Wishes(thinks=True), Wishes(effort="low"), Wishes(effort="high")
REFUSED: dict[str, Any] = {"refused": True}


@pytest.mark.parametrize("none", [OFF, Wishes(effort="none")])
@pytest.mark.parametrize(
    ("template", "variables"),
    [
        ("CHATML", {}),
        ("GEMMA", {}),
        ("THINKS_IF_TOLD", {"enable_thinking": False}),
        ("THINKS_BY_NAME", {"thinking": False}),
        ("EFFORT_OR_NONE", {"reasoning_effort": "none"}),
        ("THINKS_BY_EFFORT", REFUSED),
        ("ALWAYS_THINKS", REFUSED),
    ],
)
def test_reasoning_is_turned_off_where_there_is_any(
    template: str, variables: dict[str, Any], none: Wishes
) -> None:
    if variables is REFUSED:
        with pytest.raises(RequestError, match="always reasons") as caught:
            template_variables(TRAITS[template], none)
        assert "reasoning_effort, thinking" in (caught.value.hint or "")
    else:
        assert template_variables(TRAITS[template], none) == variables


@pytest.mark.parametrize(
    ("template", "turned_on", "much"),
    [
        ("CHATML", {}, {}),
        ("ALWAYS_THINKS", {}, {}),
        ("THINKS_IF_TOLD", {"enable_thinking": True}, {"enable_thinking": True}),
        ("THINKS_BY_NAME", {"thinking": True}, {"thinking": True}),
        ("THINKS_BY_EFFORT", {}, {"reasoning_effort": "high"}),
        ("EFFORT_OR_NONE", {}, {"reasoning_effort": "high"}),
    ],
)
def test_reasoning_is_turned_on(template: str, turned_on: dict[str, Any], much: dict[str, Any]) -> None:
    assert template_variables(TRAITS[template], ON) == turned_on
    assert template_variables(TRAITS[template], MUCH) == much


def test_a_budget_goes_to_the_template_that_reads_one() -> None:
    traits = ChatTemplate("{{ thinking_budget }}{{ enable_thinking }}").traits
    assert template_variables(traits, Wishes(thinks=True, budget=7)) == {
        "thinking_budget": 7,
        "enable_thinking": True,
    }
    assert template_variables(TRAITS["THINKS_IF_TOLD"], Wishes(thinks=True, budget=7)) == {
        "enable_thinking": True
    }


def test_nothing_is_said_of_reasoning() -> None:
    assert all(template_variables(traits, Wishes()) == {} for traits in TRAITS.values())


def test_a_request_may_not_say_both() -> None:
    for wishes in (Wishes(thinks=True, effort="none"), Wishes(thinks=False, effort="high")):
        with pytest.raises(RequestError, match="both on and off"):
            template_variables(TRAITS["THINKS_IF_TOLD"], wishes)


def test_variables_go_to_the_template_by_their_names_and_win() -> None:
    given = {"enable_thinking": True, "x": [1]}
    traits = TRAITS["THINKS_IF_TOLD"]
    assert template_variables(traits, Wishes(effort="none", variables=given)) == given
    for name in ("enable_thinking", "thinking"):
        off = Wishes(variables={name: False})
        assert template_variables(TRAITS["CHATML"], off) == {name: False}
        with pytest.raises(RequestError, match="always reasons"):
            template_variables(TRAITS["ALWAYS_THINKS"], off)
    assert template_variables(traits, Wishes(variables={"enable_thinking": False})) == {
        "enable_thinking": False
    }


def test_what_no_template_reads_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        template_variables(
            TRAITS["CHATML"], Wishes(variables={"never_heard_of": 1, "tools_in_user_message": 1})
        )
    assert sorted(record.message for record in caplog.records) == [
        f"chat_template_kwargs: the model's chat template does not use {name!r}"
        for name in ("never_heard_of", "tools_in_user_message")
    ]


deep: list[Any] = []
for _ in range(10_000):
    deep = [deep]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"messages": []}, "'messages' is set by the server"),
        ({"tools": []}, "'tools' is set by the server"),
        ({"bos_token": "x"}, "'bos_token' is set by the server"),
        ({"raise_exception": None}, "'raise_exception' is set by the server"),
        ({"__class__": 1}, "starting with a letter"),
        ({"a b": 1}, "starting with a letter"),
        ({"": 1}, "starting with a letter"),
        ({"a" * 65: 1}, "1 to 64 letters"),
        ({f"a{n}": 1 for n in range(33)}, "33 variables are too many"),
        ({"a": "x" * 70_000}, "characters are too many"),
        ({"a": deep}, "nested too deeply"),
        ([], "valid dictionary"),
        ("x", "valid dictionary"),
    ],
)
def test_variables_are_checked(given: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TypeAdapter(TemplateKwargs).validate_python(given)
