"""The workflows of GitHub: what a change must pass, and what a release is made of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))
    return loaded


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@workflows
def test_actions_have_versions_and_no_more_rights_than_they_need(path: Path) -> None:
    workflow = read(path.name)
    assert workflow["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert all(re.search(r"@(v\d+|release/v\d+)$", action) for action in used)


def test_ci_runs_what_a_change_must_pass() -> None:
    assert {"run": "bash .ci/run"} in steps(read("ci.yml"))
    assert (ROOT / ".ci" / "run").is_file()


def test_a_release_publishes_all_that_was_built_and_only_for_a_tag() -> None:
    jobs = read("release.yml")["jobs"]
    publish = jobs["publish"]
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["permissions"] == {"id-token": "write"}, "trusted publishing: no token is stored"
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")


def test_the_wheel_with_kernels_is_built_once() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["cibuildwheel"]["build"] == "cp311-*"
    assert settings["project"]["requires-python"] == ">=3.11"
    assert settings["tool"]["cibuildwheel"]["linux"]["archs"] == ["x86_64"]
