"""Coding agents as their users run them, against a server whose model says what a script tells it: each reads
a file, edits it and runs it, shows a long answer whole, and is stopped in the middle of one. Each is
installed where nothing else is, and has a home of its own.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image as Pillow

from agent_programs import AGENTS, BROKEN, FILE, MENDED, PRINTED, Agent
from agent_server import SLOWLY, AgentServer, acting, play, thought

MOST_S = 120.0
"""Seconds for one task."""

END_S = 10.0
"""Seconds in which a request ends after its client has gone."""

BETWEEN_S = 0.3
"""Seconds between two signals."""

AGAIN = 10
"""Signals more than an agent wants, at most."""

EDIT, THINK, LOOK = "Mend add in sum.py", "What is in sum.py?", "What colour is red.png?"
LONG, STOP = "Tell me a long story", "Tell me without end"
STORY = "\n".join(f"Line {number} of the story goes on." for number in range(120))


@dataclass
class Installed:
    """An agent, the command that starts it, and a home for it."""

    agent: Agent
    command: list[str]
    home: Path


@pytest.fixture(scope="module", params=AGENTS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """An agent in a folder of its own, which is gone afterwards: each takes hundreds of megabytes."""
    agent = AGENTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    try:
        (_with_npm if agent.node else _with_pip)(agent, folder)
        yield Installed(agent, _command(agent, folder), folder / "home")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_npm(agent: Agent, folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip(f"{agent.package} needs npm")
    (folder / "package.json").write_text('{"private": true}')
    options = ["--ignore-scripts", "--no-audit", "--no-fund"]
    _install(["npm", "install", *options, f"{agent.package}@{agent.version}"], agent, folder)


def _with_pip(agent: Agent, folder: Path) -> None:
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
    _install([*pip, f"{agent.package}=={agent.version}"], agent, folder)


def _install(command: list[str], agent: Agent, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        pytest.skip(f"{agent.package} {agent.version} cannot be installed: {done.stderr.strip()[-300:]}")


def _command(agent: Agent, folder: Path) -> list[str]:
    kind = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    pattern = agent.program.replace("%", f"{platform.system().lower()}-{kind}")
    found = next(iter(folder.glob(pattern)), None)
    if found is None:
        pytest.skip(f"{agent.package} has no program for this machine at {pattern}")
    if found.suffix == ".js":
        return ["node", str(found)]
    return [str(found)]


@contextmanager
def at_work(
    installed: Installed, server: AgentServer, folder: Path, task: str
) -> Iterator[subprocess.Popen[str]]:
    """The agent with a task in a folder. All that it has started is ended with it."""
    agent, home = installed.agent, installed.home
    shutil.rmtree(home, ignore_errors=True)

    def filled(text: str) -> str:
        return text.replace("@URL@", server.url).replace("@HOME@", str(home)).replace("@TASK@", task)

    for name, text in agent.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(filled(text))
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    given = {name: filled(value) for name, value in agent.environment.items()}
    environment = {**kept, "HOME": str(home), "TERM": "dumb", **given}
    if agent.before:
        before = [*installed.command, *map(filled, agent.before)]
        subprocess.run(before, cwd=folder, env=environment, timeout=MOST_S, check=True, capture_output=True)
    process = subprocess.Popen(
        [*installed.command, *map(filled, agent.ask)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def done(installed: Installed, server: AgentServer, folder: Path, task: str) -> str:
    """All that the agent printed about a task."""
    with at_work(installed, server, folder, task) as process:
        printed, _ = process.communicate(timeout=MOST_S)
    assert process.returncode == 0, printed[-3000:]
    assert not server.refused(), server.refused()
    assert any(one.path == installed.agent.path for one in server.asked), [one.path for one in server.asked]
    return printed


def test_an_agent_edits_a_file(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(BROKEN)
    with acting(play({EDIT: [*installed.agent.edits(tmp_path), "It adds now."]})) as server:
        printed = done(installed, server, tmp_path, EDIT)
    assert (tmp_path / FILE).read_text() == MENDED, printed[-3000:]
    if installed.agent.turns:
        assert any(PRINTED.encode() in one.body for one in server.asked), "it has not run the file"
        assert "It adds now." in printed


def test_what_a_model_thinks_is_no_answer(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(BROKEN)
    first, second = "First I wonder.", "Then I know."
    said = [thought(first) + installed.agent.edits(tmp_path)[0], thought(second) + "It is a sum."]
    with acting(play({THINK: said})) as server:
        printed = done(installed, server, tmp_path, THINK)
        handed_back = any(first in prompt for prompt in server.read)
    assert "<think>" not in printed
    if installed.agent.turns:
        assert "It is a sum." in printed
    assert handed_back == installed.agent.hands_back


def test_an_agent_shows_a_long_answer_whole(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(BROKEN)
    with acting(play({LONG: [STORY]})) as server:
        printed = done(installed, server, tmp_path, LONG)
    missing = [line for line in STORY.split("\n") if line not in printed]
    assert not missing, printed[-3000:]


def test_a_model_is_shown_a_picture(installed: Installed, tmp_path: Path) -> None:
    looks = installed.agent.looks
    if looks is None:
        pytest.skip("no tool of this agent shows pictures")
    picture = tmp_path / "red.png"
    Pillow.new("RGB", (16, 16), "red").save(picture)
    with acting(play({LOOK: [looks(picture), "It is red."]})) as server:
        assert "It is red." in done(installed, server, tmp_path, LOOK)
        assert server.images


def _interrupt(process: subprocess.Popen[str], signals: int) -> None:
    """Press Ctrl-C as often as an agent wants it, and again while it is there: on a busy machine two become
    one.
    """
    for _ in range(signals + AGAIN):
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(BETWEEN_S)


def test_an_agent_that_is_stopped_ends_its_request(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(BROKEN)
    with acting(play({STOP: [SLOWLY + "and so on, " * 1000]})) as server:
        with at_work(installed, server, tmp_path, STOP) as process:
            server.until_it_writes(MOST_S)
            assert process.poll() is None
            _interrupt(process, installed.agent.signals)
            server.until_idle(END_S)
        assert not server.refused(), server.refused()
