"""`foredraft chat` as a whole, over a pipe."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from chat_doubles import speaker
from foredraft import Engine
from foredraft.cli import chat as chat_module
from foredraft.cli import run_command
from foredraft.cli.chat_session import read_messages
from foredraft.cli.paths import cache_dir
from foredraft.testing import FakeModel
from gguf_factory import tiny_llama


class Typist:
    """Standard input that types its lines; an exception among them is raised instead."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        line = next(self._lines, "")
        if isinstance(line, str):
            return f"{line}\n" if line else ""
        raise line


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def fake(monkeypatch: pytest.MonkeyPatch, model: FakeModel) -> None:
    monkeypatch.setattr(chat_module, "load_engine", lambda *arguments, **options: Engine(model))


def chat(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException], options: str = "") -> int:
    monkeypatch.setattr(sys, "stdin", Typist(*lines))
    return run_command(["chat", "--temp", "0", *options.split()])


def test_every_line_is_a_turn_and_the_end_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = speaker("Hello!")
    fake(monkeypatch, model)
    assert chat(monkeypatch, "Hi", " ", "Hi again") == 0
    out, err = capsys.readouterr()
    assert out == "Hello!\nHello!\n"
    assert err.count("tokens/s") == 2
    assert model.closed


def test_the_system_option_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, speaker("Hello!"))
    assert chat(monkeypatch, "Hi", f"/save {tmp_path}/c.json", options="--system Brief.") == 0
    assert read_messages(tmp_path / "c.json")[0] == {"role": "system", "content": "Brief."}


def test_quit_ends_before_the_input_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, speaker("Hello!"))
    assert chat(monkeypatch, "/quit", "Hi") == 0
    assert capsys.readouterr().out == ""


def test_ctrl_c_while_nothing_is_typed_gives_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, speaker("Hello!"))
    assert chat(monkeypatch, KeyboardInterrupt, "Hi") == 0
    out, err = capsys.readouterr()
    assert out == "Hello!\n"
    assert "Ctrl-D or /exit quits." in err


def test_ctrl_c_during_an_answer_keeps_the_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def before(said: str) -> None:
        if said == "Hell":
            signal.raise_signal(signal.SIGINT)

    fake(monkeypatch, speaker("Hello!", before=before))
    assert chat(monkeypatch, "Hi", "Hi") == 0
    out, err = capsys.readouterr()
    assert out == "Hello\nHello\n"
    assert err.count("stopped · ") == 2


def test_ctrl_c_during_a_command_keeps_the_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(engine: Engine, speculation: object) -> None:
        raise KeyboardInterrupt

    fake(monkeypatch, speaker("Hello!"))
    monkeypatch.setattr(Engine, "set_speculation", interrupted)
    assert chat(monkeypatch, "/speculate off", "Hi") == 0
    out, err = capsys.readouterr()
    assert out == "Hello!\n"
    assert "Stopped." in err


def test_sampling_options_are_checked_before_anything_is_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, speaker("Hello!"))
    assert chat(monkeypatch, "Hi", options="--temp -1") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "temperature" in err


def test_a_real_model_reuses_the_prefix_of_the_turn_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    lines = ("The quick brown fox", "jumps over", "/stats", f"/save {tmp_path / 'c.json'}")
    assert chat(monkeypatch, *lines, options=f"{tiny} -t 1 -n 12 --ctx 256 --no-remember") == 0
    out, err = capsys.readouterr()
    messages = read_messages(tmp_path / "c.json")
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert out == messages[1]["content"] + "\n" + messages[3]["content"] + "\n"
    row = next(line for line in err.splitlines() if line.startswith("last prompt"))
    prompt, cached = [int(word) for word in row.split() if word.isdigit()]
    assert 10 < cached < prompt


def test_a_context_that_is_full_keeps_the_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    lines = ("word " * 200, "/reset", "Hi")
    assert chat(monkeypatch, *lines, options=f"{tiny} -t 1 -n 4 --ctx 64 --no-remember") == 0
    out, err = capsys.readouterr()
    assert "the context holds 64" in err
    assert err.count("tokens/s") == 1
    assert out.strip()


@pytest.mark.parametrize("remember", [True, False])
def test_typed_lines_are_kept_on_a_terminal_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, remember: bool
) -> None:
    opened: list[Path | None] = []

    def at_end() -> str:
        raise EOFError

    def open_input(history: Path | None, *arguments: object) -> object:
        opened.append(history)
        return at_end

    fake(monkeypatch, speaker("Hello!"))
    monkeypatch.setattr(chat_module, "open_input", open_input)
    assert chat(monkeypatch, options="" if remember else "--no-remember") == 0
    assert opened == [cache_dir() / "history" if remember else None]


def test_someone_at_a_terminal_is_told_what_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, speaker("Hello!"))
    monkeypatch.setattr(chat_module, "is_interactive", lambda: True)
    assert chat(monkeypatch) == 0
    assert capsys.readouterr().err.splitlines() == [
        "fake · context 4,096 · temperature 0 · speculation auto · exact",
        "/help lists the commands, Ctrl-D quits.",
    ]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
def test_a_terminal_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.cli.chat_input import is_interactive

    leader, follower = os.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "r") as terminal, Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", nowhere)
        monkeypatch.setattr(sys, "stderr", nowhere)
        assert not is_interactive()
        monkeypatch.setattr(sys, "stderr", terminal)
        assert is_interactive()


def test_the_exit_code_of_a_pipe_tells_that_a_line_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, speaker("Hello!"))
    assert chat(monkeypatch, "/image nofile.png", "Hi") == 1
    fake(monkeypatch, speaker("Hello!"))
    assert chat(monkeypatch, "/nonesuch") == 1
