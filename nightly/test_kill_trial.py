"""A hundred times kill -9 at a random moment: what is kept on disk stays whole, and answers stay the same.

`serve` in the middle of streams, `chat` and `run` in the middle of answers, `keys` while it writes the
settings; all on one cache folder, which holds past outputs, prefixes, profiles and what was probed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import httpx

import gguf_factory
from foredraft.server.settings_file import read_settings
from served_process import SETTINGS, answer, kill, served

KILLS = 100
LEAST = 4
"""Kills that a night of any length has: one of each kind."""

LONGEST_S = 4.0
"""The latest moment of a kill, after a command has begun: starting takes about half of that."""

PROMPTS = [f"the ferry left the island {number} times, the ferry left" for number in range(4)]
GREEDY = ("--temp", "0", "-n", "60", "-t", "1", "--ctx", "1024")


@dataclass(slots=True)
class Trial:
    """One cache folder and one settings file, and what answers were at first."""

    folder: Path
    rng: random.Random
    texts: dict[str, str] = field(default_factory=dict)
    keys: int = 0

    @property
    def settings(self) -> Path:
        return self.folder / "server.toml"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "foredraft", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "FOREDRAFT_CACHE": str(self.cache)}

    def same(self, what: str, text: str) -> None:
        """Whether an answer is what it was before anything was killed."""
        assert self.texts.setdefault(what, text) == text, f"{what}: another text after a kill"

    def killed(self, *arguments: str, stdin: str = "") -> None:
        """Run a command, and kill it at a random moment unless it is over by then."""
        process = subprocess.Popen(
            self.command(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        try:
            process.wait(self.rng.uniform(0.0, LONGEST_S))
        except subprocess.TimeoutExpired:
            kill(process)

    def whole(self, *arguments: str, stdin: str = "") -> str:
        """What the command prints when nobody kills it."""
        ran = subprocess.run(
            self.command(arguments),
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stdout


def serve(trial: Trial) -> None:
    """Killed while it streams to several clients."""
    with served(trial.settings, trial.cache) as (url, process):
        trial.same("serve", "".join(answer(url, prompt) for prompt in PROMPTS))
        body = {"prompt": PROMPTS[0], "max_tokens": 900, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            for _ in range(trial.rng.randrange(1, 60)):
                next(lines, None)
            kill(process)


def run(trial: Trial) -> None:
    """Killed while it loads, answers or ends."""
    arguments = ("run", str(trial.folder / "tiny.gguf"), PROMPTS[1], *GREEDY)
    trial.killed(*arguments)
    trial.same("run", trial.whole(*arguments))


def chat(trial: Trial) -> None:
    """Killed in one of its turns."""
    arguments = ("chat", str(trial.folder / "tiny.gguf"), *GREEDY)
    turns = "\n".join(PROMPTS) + "\n"
    trial.killed(*arguments, stdin=turns)
    trial.same("chat", trial.whole(*arguments, stdin=turns))


def keys(trial: Trial) -> None:
    """Killed while it writes a key into the settings."""
    before = {key.name for key in read_settings(trial.settings).keys}
    trial.keys += 1
    name = f"key{trial.keys}"
    trial.killed("keys", "new", name, "--file", str(trial.settings))
    after = {key.name for key in read_settings(trial.settings).keys}
    assert after in (before, before | {name})
    if name in after:
        trial.whole("keys", "remove", name, "--file", str(trial.settings))
    assert "# a comment that stays" in trial.settings.read_text()


KINDS: tuple[Callable[[Trial], None], ...] = (serve, run, chat, keys)


def test_kill_harms_nothing(tmp_path: Path, seconds: float) -> None:
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=2048, weight_type="q8_0")
    trial = Trial(tmp_path, random.Random(45))
    trial.settings.write_text(SETTINGS)
    done: Counter[str] = Counter()
    until = monotonic() + seconds
    for number in range(KILLS):
        if monotonic() > until and number >= LEAST:
            break
        kind = KINDS[number % len(KINDS)]
        kind(trial)
        done[kind.__name__] += 1
    assert min(done[kind.__name__] for kind in KINDS)
    assert read_settings(trial.settings).default_model == "tiny"
    left = [path for path in trial.cache.rglob("*") if path.suffix in (".tmp", ".part")]
    assert len(left) <= sum(done.values()), left
    trial.whole("forget", "--yes")
    assert "tiny" in trial.whole("doctor", str(tmp_path / "tiny.gguf"), "-t", "1")
