"""The files of `deploy/` fit one another, the package and the command line. Images are not built here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from foredraft.cli import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile*"))
UNIT = DEPLOY / "foredraft.service"

dockerfiles = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, in order."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def last_stage(path: Path) -> list[tuple[str, str]]:
    """The instructions of the image that is kept."""
    found = instructions(path)
    begins = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return found[begins:]


def flags_of_serve() -> set[str]:
    serve = cli.get_command(click.Context(cli), "serve")
    assert serve is not None
    return {flag for option in serve.params for flag in option.opts}


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@dockerfiles
def test_the_image_starts_the_server_as_another_user_than_root(path: Path) -> None:
    stage = dict(last_stage(path))
    entry = json.loads(stage["ENTRYPOINT"])
    assert entry[:2] == ["foredraft", "serve"]
    assert {word for word in entry if word.startswith("--")} <= flags_of_serve()
    assert "--allow-public" not in entry, "who starts it without a key says so"
    assert int(stage["USER"]) > 0
    assert stage["VOLUME"] == stage["WORKDIR"] == "/data"
    assert "FOREDRAFT_CACHE=/data/cache" in stage["ENV"]
    assert "127.0.0.1:8080/health" in stage["HEALTHCHECK"]


@dockerfiles
def test_the_library_of_openmp_is_there_and_the_compiler_is_not(path: Path) -> None:
    stages: dict[str, str] = {}
    name = ""
    for instruction, arguments in instructions(path):
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            stages[name] = stages.get(base, "")
        elif instruction == "RUN":
            stages[name] += arguments
    assert "libgomp1" in stages[""]
    assert "g++" not in stages[""]
    assert "g++" in stages["build"]


@dockerfiles
def test_the_extras_that_an_image_installs_exist(path: Path) -> None:
    [chosen] = [text.removeprefix("EXTRAS=") for name, text in instructions(path) if "EXTRAS=" in text[:7]]
    assert set(chosen.split(",")) <= extras()


def test_the_cuda_build_is_of_the_llama_cpp_that_is_bound() -> None:
    [build] = [text for name, text in instructions(DEPLOY / "Dockerfile.cuda") if "pip download" in text]
    [pattern] = re.findall(r"grep -o '([^']*)' pyproject.toml", build)
    found = re.findall(pattern, (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert len(found) == 1, "the package with its version, once"


def test_what_a_build_needs_is_sent_to_docker() -> None:
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {*wheel["packages"], *(hook.get("path", "hatch_build.py") for hook in hooks(project))}
    assert {name.split("/", 1)[0] for name in needed} <= sent
    assert all((ROOT / name).exists() for name in sent)


def hooks(project: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """hatchling's build hooks."""
    build = project["tool"]["hatch"]["build"]
    for place in (build, *build["targets"].values()):
        yield from place.get("hooks", {}).values()


def test_compose_mounts_and_reads_what_exists() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    services = compose["services"]
    assert set(services) == {"foredraft", "prometheus", "grafana"}
    build = services["foredraft"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    mounts = [mount.split(":") for service in services.values() for mount in service["volumes"]]
    for source, *_ in mounts:
        if source.startswith("./") and source != "./models":
            assert (DEPLOY / source).is_file()
        else:
            assert source == "./models" or source in compose["volumes"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_prometheus_asks_foredraft_and_grafana_asks_prometheus() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    [job] = read_yaml(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["foredraft:8080"]}]
    [secret] = compose["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert secret in compose["secrets"]
    [source] = read_yaml(DEPLOY / "grafana" / "datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    [provider] = read_yaml(DEPLOY / "grafana" / "dashboards.yaml")["providers"]
    mounted = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    [target] = [target for origin, target, *_ in mounted if origin == "./grafana/dashboard.json"]
    assert target.startswith(provider["options"]["path"] + "/")


def test_the_unit_runs_the_server() -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    program, *arguments = command.split()
    assert program.endswith("/foredraft")
    assert arguments[0] == "serve"
    assert set(arguments[1:]) <= flags_of_serve()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = UNIT.read_text(encoding="utf-8")
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit, flags=re.MULTILINE))
    ran = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
