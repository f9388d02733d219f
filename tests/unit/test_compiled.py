"""What is compiled decides and drafts as its source does, and gives way where the source is another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from shutil import which

import pytest

from foredraft import compiled
from foredraft.compiled import LIST, State, choose, fingerprint, state

RUN = """
import sys
from foredraft import compiled
if sys.argv[1] == "source":
    compiled.use_source()
from foredraft.bench.curves import find_curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.static_drafters import shipped_traces
from foredraft import Engine, SamplingParams
from foredraft.drafters.lookup import recycle_chain, recycle_table, suffix_index, suffix_vote
from foredraft.planner import adaptive

traces = shipped_traces()
model = ReplayModel(traces, find_curve("steep"), sequences=3)
told = []
with Engine(model, clock=model.clock) as engine:
    engine.set_speculation("auto")
    engine.decisions.watch(told.append)
    work = [(list(trace.prompt), len(trace.output)) for trace in traces.traces[:8]]
    engine.run([engine.add(prompt, SamplingParams(max_tokens=most)) for prompt, most in work])
parts = adaptive, recycle_chain, recycle_table, suffix_index, suffix_vote
print(*{part.__file__.endswith(".py") for part in parts})
for decision in told:
    for choice in decision.choices:
        survival = [candidate.survival for candidate in choice.candidates]
        print(choice.source, choice.length, choice.reason, choice.gain, survival)
"""


@pytest.fixture
def planner(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module that was "compiled", in a package that is imported nowhere else."""
    folder = tmp_path / "compiled_planner"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rules.py").write_text("FROM = 'source'\n")
    (folder / f"rules{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    (folder / LIST).write_text(json.dumps({"rules.py": fingerprint(folder / "rules.py")}))
    yield folder
    sys.path_importer_cache.pop(str(folder), None)
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def imported_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(folder.parent)
    choose(folder)
    from compiled_planner import rules  # type: ignore[import-not-found]

    return str(rules.FROM)


def test_what_fits_its_source_is_used(planner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state(planner) is State.COMPILED
    with pytest.raises(ImportError):  # it is no library: that it was tried shows that it is preferred
        imported_from(planner, monkeypatch)


@pytest.mark.parametrize("edit", ["FROM = 'source' \n", "FROM = 'an edited source'\n"])
def test_an_edited_source_is_what_runs(planner: Path, edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (planner / "rules.py").write_text(edit)
    assert state(planner) is State.STALE
    assert imported_from(planner, monkeypatch) in edit


def test_line_ends_are_not_an_edit(planner: Path) -> None:
    (planner / "rules.py").write_bytes(b"FROM = 'source'\r\n")
    assert state(planner) is State.COMPILED


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff", b'{"gone.py": "abc"}', b'{"rules.py": 1}']
)
def test_a_list_that_says_nothing_is_a_stale_one(planner: Path, content: bytes) -> None:
    (planner / LIST).write_bytes(content)
    assert state(planner) is State.STALE


def test_without_a_list_there_is_the_source(planner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (planner / LIST).unlink()
    (planner / f"rules{EXTENSION_SUFFIXES[0]}").unlink()
    assert state(planner) is State.SOURCE
    assert imported_from(planner, monkeypatch) == "source"


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of others has another name for it")
def test_nothing_is_asserted_between_two_forwards() -> None:
    """Python's flags say so for what it compiles. Where CFLAGS was set they were gone, and assertions took a
    twentieth of each decision.
    """
    libraries = [path for folder in compiled.PARTS for path in folder.glob(f"*{EXTENSION_SUFFIXES[0]}")]
    if not libraries:
        pytest.skip("nothing was compiled")
    assert [path.name for path in libraries if b"__assert_fail" in path.read_bytes()] == []


def test_it_decides_as_the_source_does() -> None:
    """Every candidate's chances, every gain, length and reason, bit by bit."""
    states = set(compiled.states().values())
    if State.STALE in states:
        pytest.skip("something was edited since it was compiled: make compile")
    if which("cc") is None:
        pytest.skip("there is no C compiler")
    assert states == {State.COMPILED}, "installing did not compile all: make compile says why"
    runs = [
        subprocess.run([sys.executable, "-c", RUN, kind], stdout=subprocess.PIPE, text=True, check=True)
        for kind in ("compiled", "source")
    ]
    (compiled_one, *decisions), (source, *expected) = (run.stdout.splitlines() for run in runs)
    assert (compiled_one, source) == ("False", "True")
    assert len(expected) > 300
    assert decisions == expected
