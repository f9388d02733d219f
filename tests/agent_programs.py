"""Coding agents as programs: how each is installed, set up and asked, as its own documentation says, and how
a model calls its tools. Nothing is sent to their makers: telemetry and updates are switched off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_server import call

FILE = "sum.py"
WRONG, RIGHT = "a - b", "a + b"
BROKEN = f"def add(a, b):\n    return {WRONG}\n\n\nprint('the sum is', add(2, 3))\n"
PRINTED = "the sum is 5"
MENDED = BROKEN.replace(WRONG, RIGHT)


@dataclass(frozen=True)
class Agent:
    """A program. `program`: where it lies in the folder into which its package is installed; `%` stands for
    the platform as npm names it. `files`: what is written to its home, by path. `before` and `ask`: its
    arguments, for setting it up and for a task. In all of them `@URL@` is the server's address, `@HOME@` the
    program's home, and `@TASK@` the task. `edits`: what the model says, one answer after the other, to mend
    the file in a folder and to run it. `path`: the path of the server's that it uses. `turns`: it calls
    tools. `hands_back`: it sends thoughts back while it does. `signals`: how often it has to be interrupted,
    as by Ctrl-C, to end. `looks`: how the model has a picture shown to it; None: by no tool.
    """

    package: str
    version: str
    program: str
    path: str
    ask: Sequence[str]
    edits: Callable[[Path], Sequence[str]]
    node: bool = True
    turns: bool = True
    hands_back: bool = True
    signals: int = 1
    looks: Callable[[Path], str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()


def _claude(folder: Path) -> list[str]:
    path = str(folder / FILE)
    return [
        "I look at it first.\n" + call("Read", file_path=path),
        call("Edit", file_path=path, old_string=WRONG, new_string=RIGHT),
        call("Bash", command=f"python3 {FILE}", description="Run it"),
    ]


def _codex(_: Path) -> list[str]:
    patch = f"*** Update File: {FILE}\n@@\n def add(a, b):\n-    return {WRONG}\n+    return {RIGHT}"
    patch = f"*** Begin Patch\n{patch}\n*** End Patch\n"
    return [
        "I look at it first.\n" + call("exec_command", cmd=f"cat {FILE}"),
        call("apply_patch", input=patch),
        call("exec_command", cmd=f"python3 {FILE}"),
    ]


def _opencode(folder: Path) -> list[str]:
    path = str(folder / FILE)
    return [
        "I look at it first.\n" + call("read", filePath=path),
        call("edit", filePath=path, oldString=WRONG, newString=RIGHT),
        call("bash", command=f"python3 {FILE}", description="Run it"),
    ]


def _cline(folder: Path) -> list[str]:
    path = str(folder / FILE)
    return [
        "I look at it first.\n" + call("read_files", files=[{"path": path}]),
        call("editor", path=path, old_text=WRONG, new_text=RIGHT),
        call("run_commands", commands=[f"python3 {FILE}"]),
    ]


def _continue(folder: Path) -> list[str]:
    path = str(folder / FILE)
    return [
        "I look at it first.\n" + call("Read", filepath=path),
        call("Edit", file_path=path, old_string=WRONG, new_string=RIGHT),
        call("Bash", command=f"python3 {FILE}"),
    ]


def _aider(_: Path) -> list[str]:
    searched = "def add(a, b):\n    return "
    block = f"<<<<<<< SEARCH\n{searched}{WRONG}\n=======\n{searched}{RIGHT}\n>>>>>>> REPLACE"
    return [f"It has to add.\n\n{FILE}\n```python\n{block}\n```\n"]


_OPENCODE = {
    "$schema": "https://opencode.ai/config.json",
    "autoupdate": False,
    "share": "disabled",
    "model": "foredraft/default",
    "provider": {
        "foredraft": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Foredraft",
            "options": {"baseURL": "@URL@/v1", "apiKey": "none"},
            "models": {"default": {"name": "Local model", "limit": {"context": 200_000, "output": 8192}}},
        }
    },
}

AGENTS = {
    "claude": Agent(
        package="@anthropic-ai/claude-code",
        version="2.1.332",
        program="node_modules/@anthropic-ai/claude-code-%/claude",
        path="/v1/messages?beta=true",
        ask=("-p", "@TASK@", "--allowedTools", "Read", "Edit", "Bash"),
        edits=_claude,
        looks=lambda path: call("Read", file_path=str(path)),
        environment={
            "ANTHROPIC_BASE_URL": "@URL@",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "default",
            "ANTHROPIC_SMALL_FAST_MODEL": "default",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    "codex": Agent(
        package="@openai/codex",
        version="0.171.0",
        program="node_modules/@openai/codex-%/vendor/*/bin/codex",
        path="/v1/responses",
        ask=("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "@TASK@"),
        edits=_codex,
        looks=lambda path: call("view_image", path=str(path)),
        files={
            ".codex/config.toml": """\
model = "gpt-5.5"
model_provider = "foredraft"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.foredraft]
name = "Foredraft"
base_url = "@URL@/v1"
wire_api = "responses"
"""
        },
    ),
    "opencode": Agent(
        package="opencode-ai",
        version="1.18.33",
        program="node_modules/opencode-%/bin/opencode",
        path="/v1/chat/completions",
        ask=("run", "@TASK@"),
        edits=_opencode,
        environment={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={".config/opencode/opencode.json": json.dumps(_OPENCODE, indent=2)},
    ),
    "cline": Agent(
        package="cline",
        version="3.0.65",
        program="node_modules/@cline/cli-%/bin/cline",
        path="/v1/chat/completions",
        before=(
            *("auth", "--data-dir", "@HOME@/data", "--provider", "openai-compatible"),
            *("--apikey", "none", "--modelid", "default", "--baseurl", "@URL@/v1"),
        ),
        ask=("--data-dir", "@HOME@/data", "--auto-approve", "true", "@TASK@"),
        edits=_cline,
        environment={"DO_NOT_TRACK": "1"},
    ),
    "continue": Agent(
        package="@continuedev/cli",
        version="1.5.47",
        program="node_modules/@continuedev/cli/dist/cn.js",
        path="/v1/chat/completions",
        ask=("--config", "@HOME@/config.yaml", "--auto", "-p", "@TASK@"),
        edits=_continue,
        hands_back=False,
        environment={"CONTINUE_TELEMETRY_ENABLED": "0"},
        files={
            "config.yaml": """\
name: Local
version: 1.0.0
schema: v1
models:
  - name: Foredraft
    provider: openai
    model: default
    apiBase: @URL@/v1
    apiKey: none
    roles: [chat, edit, apply]
    capabilities: [tool_use]
"""
        },
    ),
    "aider": Agent(
        package="aider-chat",
        version="0.86.2",
        program="bin/aider",
        path="/v1/chat/completions",
        ask=(
            *("--model", "openai/default", "--edit-format", "diff", "--no-git", "--yes-always"),
            *("--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-pretty"),
            *("--message", "@TASK@", FILE),
        ),
        edits=_aider,
        node=False,
        turns=False,
        hands_back=False,
        signals=2,
        environment={
            "OPENAI_API_BASE": "@URL@/v1",
            "OPENAI_API_KEY": "none",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
}
