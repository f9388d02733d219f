"""The live part of `foredraft bench`: the settings, the progress bar, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.markup import escape

from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp.system import processor_name
from foredraft.bench.live import measure, turn_ids, warm_up
from foredraft.bench.passes import ENOUGH, Passes
from foredraft.bench.report import Report, live_report
from foredraft.bench.results import (
    ALL,
    SHORTEST,
    Row,
    answered_by_all,
    noise,
    scores,
    speedup_noise,
    summaries,
)
from foredraft.bench.sides import EngineSide
from foredraft.bench.workloads import PromptCase
from foredraft.cli.bench_bar import answers_bar
from foredraft.cli.loading import load_engines
from foredraft.cli.units import counted
from foredraft.config import OFF, parse_speculation
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A benchmark to run. `settings` are speculation strings, `loading` keyword arguments of `Engine.load`.
    `source` describes the origin of the prompts.
    """

    model: str | None
    settings: Sequence[str]
    cases: Sequence[PromptCase]
    source: str
    params: SamplingParams
    repeat: int
    turns: int = 1
    loading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compared(self) -> list[str]:
        """The settings to compare with plain decoding, which is always included."""
        named = [str(parse_speculation(text)) for text in self.settings]
        return [name for name in dict.fromkeys(named) if name != OFF]

    @property
    def prompts(self) -> list[str]:
        """The names of all prompts in results."""
        return turn_ids(self.cases, self.turns)


def run_live(plan: Plan, console: Console) -> tuple[Report, KeyboardInterrupt | None]:
    """Measure and report; also returns the interruption if there was one, and then the report covers the
    complete prompts.

    Raises ForedraftError; KeyboardInterrupt if nothing has been measured yet.
    """
    with ExitStack() as stack:
        engines = load_plan_engines(plan, [OFF, *plan.compared], console)
        for engine in engines.values():
            stack.enter_context(engine)
        rows: list[Row] = []
        stopped = _measure(plan, [EngineSide(*one) for one in engines.items()], rows, console)
        notes = list(engines[OFF].model.info.notes)
        notes += [f"{name}: {note}" for name, engine in engines.items() for note in engine.setup.all_notes()]
        watched = [name for name, engine in engines.items() if engine.model.capabilities.features]
        report = live_report(
            rows,
            title="Live benchmark",
            baseline=OFF,
            about=_about(plan, engines[OFF]) | _watched(watched) | _passes(plan, rows),
            notes=[*notes, *_notes(plan, rows, stopped=stopped is not None)],
            complete=stopped is None,
        )
    return report, stopped


def load_plan_engines(plan: Plan, speculations: Sequence[str], console: Console) -> dict[str, Engine]:
    """Engines for these speculation strings with the plan's options, on one model."""
    settings = [parse_speculation(speculation) for speculation in speculations]
    engines = load_engines(plan.model, settings, dict(plan.loading), console)
    return dict(zip(speculations, engines, strict=True))


def _measure(
    plan: Plan, sides: Sequence[EngineSide], rows: list[Row], console: Console
) -> KeyboardInterrupt | None:
    """Add rows as they are measured, with a progress bar; returns the interruption if there was one. Then
    only rows are kept that compare every side.
    """
    names = [side.name for side in sides]
    passes = Passes(plan.cases, plan.repeat, min(ENOUGH, plan.params.max_tokens or ENOUGH))
    answers = len(sides) * len(plan.prompts) / max(len(plan.cases), 1)  # per case, in each pass
    with answers_bar(console) as bar:
        task = bar.add_task("warming up", total=answers * passes.count)
        try:
            warm_up(sides)
            too_long: set[str] = set()
            for row in measure(sides, passes, plan.params, turns=plan.turns, too_long=too_long):
                rows.append(row)
                text = f"{escape(row.prompt)}  {_so_far(rows)}"
                bar.update(task, advance=1, total=answers * passes.count, description=text)
            if too_long:
                rows[:] = [row for row in rows if row.prompt not in too_long]
                rows.sort(key=lambda row: names.index(row.setting))  # the last setting may be measured first
        except KeyboardInterrupt as pressed:
            rows[:] = answered_by_all(rows, names)
            if not rows:
                raise
            return pressed
    if not rows:
        raise ConfigError(
            "No prompt fits into the context.",
            hint="Use shorter prompts, or a larger context (--ctx) if the model supports it.",
        )
    return None


def _so_far(rows: Sequence[Row]) -> str:
    """The speedup of each setting so far, as many as fit on a line."""
    found = [summary for summary in summaries(scores(rows, OFF)) if summary.category == ALL]
    known = [summary for summary in found if summary.setting != OFF and summary.speedup]
    return "  ".join(f"{escape(summary.setting)} {summary.speedup:.3f}" for summary in known[:3])


def _notes(plan: Plan, rows: Sequence[Row], *, stopped: bool) -> list[str]:
    """Notes about the rows for the reader of the report."""
    notes = []
    measured = {row.prompt for row in rows}
    missing = [name for name in plan.prompts if name not in measured]
    if stopped:
        of = f"{counted(len(measured), 'prompt')} of {len(plan.prompts)}"
        notes.append(f"stopped after {counted(len(rows), 'answer')} to {of}: the report covers only these")
    elif missing:
        notes.append(f"left out, because they do not fit into the context: {', '.join(missing)}")
    short = sorted({row.prompt for row in rows if row.sample.count < SHORTEST})
    if short:
        notes.append(f"answers of less than {SHORTEST} tokens have no rate: {', '.join(short)}")
    return notes


def _about(plan: Plan, engine: Engine) -> dict[str, str]:
    info, able, params = engine.model.info, engine.model.capabilities, plan.params
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in info.settings.items())
    sampling = f"temperature {params.temperature:g}, seed {params.seed}"
    now = datetime.now().astimezone().isoformat(" ", "minutes")
    where = f"{processor_name()}, {physical_cores()} cores" if info.device == "cpu" else info.device
    about = {
        "model": f"{info.name}, {info.quantization or 'unknown quantization'}",
        "runs on": f"{info.backend}, {where}",
        "settings": settings,
        "exact": ("yes: " if able.batch_invariant else "no: ") + able.invariance_note,
        "prompts": plan.source,
        "answers": f"up to {params.max_tokens} tokens, {sampling}",
        "remembered": "past outputs" if plan.loading.get("remember") else "nothing",
        "measured": f"{now}, foredraft {version('foredraft')}",
    }
    return {label: value for label, value in about.items() if value}


def _watched(names: Sequence[str]) -> dict[str, str]:
    """The settings whose model keeps hidden states for a head, in words."""
    return {"hidden states": f"kept for a head in {', '.join(names)}"} if names else {}


def _passes(plan: Plan, rows: Sequence[Row]) -> dict[str, str]:
    """The number of passes, and the differences between those over a prompt, in words."""
    most = 1 + max(row.repeat for row in rows)
    more = f", up to {most} over short or slow answers" if most > plan.repeat else ""
    passes = f"{plan.repeat}{more}: rates of the fastest, speedups by their median"
    plain, paired = noise(rows, OFF), speedup_noise(scores(rows, OFF), OFF)
    if plain is None:
        return {"passes": passes}
    text = f"between passes over a prompt {OFF} differs by {100 * plain:.1f} %"
    noisy = text if paired is None else f"{text}, a speedup by {100 * paired:.1f} % (medians)"
    return {"passes": passes, "noise": noisy}
