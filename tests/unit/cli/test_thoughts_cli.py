"""What a model thinks, at the terminal: dimmed or left out by `run`, folded by `chat`, kept as history."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import thinking_cases as cases
from chat_doubles import chat_with, notes
from command_line import Command
from foredraft import Engine
from foredraft.cli.chat_commands import run_command
from foredraft.cli.chat_session import Conversation, read_messages
from foredraft.cli.chat_turn import Chat
from foredraft.cli.render import StreamPrinter
from foredraft.cli.thoughts import ThoughtfulPrinter, Told
from gguf_factory import tiny_llama
from thinking_cases import ANSWER, ASKED, TEMPLATES, THOUGHT, thinking_model

everywhere = pytest.mark.parametrize("name", TEMPLATES)


def said(chat: Chat) -> str:
    return chat.printer._out.getvalue()  # type: ignore[attr-defined, no-any-return]


@everywhere
def test_chat_folds_it_and_keeps_it_for_the_template(name: str, tmp_path: Path) -> None:
    chat = chat_with(thinking_model(TEMPLATES[name]))
    chat.ask("How many?")
    chat.ask("How many?")
    assert said(chat) == f"{ANSWER}\n{ANSWER}\n"
    assert len(re.findall(r"thought for \d+ tokens, \d+\.\d s · /thought shows it", notes(chat))) == 2
    assert re.search(r"\d+ tokens, \d+ of them thought", notes(chat))
    answer = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
    assert chat.conversation.messages[1::2] == [answer, answer]
    chat.conversation.save(tmp_path / "c.json")
    assert read_messages(tmp_path / "c.json") == chat.conversation.messages


def test_a_command_shows_it_and_others_from_now_on() -> None:
    chat = chat_with(thinking_model(cases.DEEPSEEK))
    run_command(chat, "/thought")
    assert "There is no thought" in notes(chat)
    chat.ask("How many?")
    assert THOUGHT not in notes(chat)
    run_command(chat, "/thought")
    assert THOUGHT in notes(chat)
    run_command(chat, "/thought on")
    chat.ask("How many?")
    assert said(chat) == f"{ANSWER}\n{THOUGHT}\n\n{ANSWER}\n"
    run_command(chat, "/thought off")
    chat.ask("How many?")
    assert said(chat).endswith(f"{ANSWER}\n{ANSWER}\n")
    run_command(chat, "/thought loud")
    assert "/thought on or off" in notes(chat)


def test_an_answer_that_is_cut_off_in_its_thought_goes_into_the_history() -> None:
    chat = chat_with(thinking_model(cases.QWEN), max_tokens=20)
    chat.ask("How many?")
    assert "still thinking" in notes(chat)
    last = chat.conversation.messages[-1]
    assert last["content"] == ""
    assert THOUGHT.startswith(last["reasoning_content"])
    chat.ask("How many?")
    assert len(chat.conversation.messages) == 4


@pytest.mark.parametrize("thought", ["", "Hm."])
def test_a_turn_with_a_thought(thought: str) -> None:
    conversation = Conversation()
    conversation.add_turn("Hello?", "Hi.", thought)
    assert conversation.messages[1].get("reasoning_content", "") == thought


def shown(thoughts: bool, *, colour: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=colour, color_system="standard" if colour else None)
    printer = StreamPrinter(console)
    with Engine(thinking_model(cases.QWEN)) as engine:
        told = Told(engine, ASKED)
        writer = ThoughtfulPrinter(printer, told, thoughts=thoughts)
        for event in engine.stream(ASKED, max_tokens=300):
            writer.write(event)
        printer.end()
        assert (told.thought, told.text) == (THOUGHT, ANSWER)
    assert printer.legend() == ""
    return out.getvalue()


def test_it_is_dimmed_on_a_terminal_and_plain_elsewhere() -> None:
    assert shown(False, colour=False) == f"{ANSWER}\n"
    assert shown(True, colour=False) == f"{THOUGHT}\n\n{ANSWER}\n"
    coloured = shown(True, colour=True)
    assert "\x1b[2mT\x1b[0m" in coloured
    assert coloured.endswith(f"\n\n{ANSWER}\n")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in whose prompt a thought is opened."""
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "thinks.gguf", chat_template=cases.DEEPSEEK)


def test_run_prints_the_answer_alone_in_a_pipe(foredraft: Command, thinker: Path) -> None:
    given: list[Any] = [
        "run",
        "-m",
        thinker,
        "-t",
        1,
        "-n",
        40,
        "--temp",
        0,
        "--reasoning-budget",
        6,
        "Hello",
    ]
    plain = foredraft(*given)
    assert plain.code == 0, plain.err
    assert "</think>" not in plain.out
    assert re.search(r"40 tokens, \d+ of them thought", plain.err)
    value = json.loads(foredraft(*given, "--json").out)
    assert value["text"].strip() == plain.out.strip()
    assert value["reasoning_content"]
    assert value["usage"]["completion_tokens_details"]["reasoning_tokens"] > 6
    whole = foredraft(*given, "--show-thinking").out
    assert whole.strip() == f"{value['reasoning_content']}\n\n{value['text']}".strip()


def test_a_comparison_compares_the_thought_too(foredraft: Command, thinker: Path) -> None:
    given: list[Any] = [
        "run",
        "-m",
        thinker,
        "-t",
        1,
        "-n",
        40,
        "--reasoning-budget",
        6,
        "--seed",
        3,
        "Hello",
    ]
    value = json.loads(foredraft(*given, "--compare", "--json").out)
    assert value["compared"]["same_bytes"]


def test_a_raw_prompt_has_no_thought(foredraft: Command, thinker: Path) -> None:
    ran = foredraft("run", "-m", thinker, "-t", 1, "-n", 12, "--temp", 0, "--raw", "--json", "Hm <think>")
    value = json.loads(ran.out)
    assert "reasoning_content" not in value
    assert value["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
