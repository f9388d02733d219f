"""One replay of the shipped traces in virtual time, in whichever source tree PYTHONPATH names.

It uses little of the tree, so that it runs in old and new ones: the engine, the replay model, the curves and
the traces. Attempts to draft are charged from outside: a wrapper around each drafter and one around the
planner move the clock. Prints one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from foredraft import Engine, SamplingParams
from foredraft.bench.curves import find_curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.trace import read_traces

FURTHER = 0.22
"""What an attempt costs for each request beyond the first, of what it costs for one."""


def attempts_of(curve: Any) -> Any:
    """What attempts cost on a curve."""
    return curve.attempts if hasattr(curve, "attempts") else curve.asking


def round_ms(cost: Any) -> float:
    """What every round costs."""
    ms: float = cost.round if hasattr(cost, "round") else cost.resting
    return ms


class Meter:
    """Moves the model's clock; `seconds` is by how much in all."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.seconds = 0.0

    def charge(self, ms: float, requests: int) -> None:
        if requests:
            seconds = ms * (1.0 + FURTHER * (requests - 1)) / 1e3
            self.seconds += seconds
            self._model.seconds += seconds


class Wrapper:
    """Stands for another object in all that it does not do itself."""

    def __init__(self, inner: Any, meter: Meter, cost: Any) -> None:
        self._inner = inner
        self._meter = meter
        self._cost = cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ChargedDrafter(Wrapper):
    """A drafter that takes virtual time."""

    def draft(self, requests: Sequence[Any]) -> Any:
        self._meter.charge(self._cost.of(self._inner.name), len(requests))
        return self._inner.draft(requests)


class ChargedPlanner(Wrapper):
    """A planner of which every round, and choosing where there is something to choose from, takes time."""

    def rests(self, *args: Any) -> Any:
        self._meter.charge(round_ms(self._cost), 1)
        return self._inner.rests(*args)

    def limits(self, *args: Any) -> Any:
        if not hasattr(self._inner, "rests"):
            self._meter.charge(round_ms(self._cost), 1)
        return self._inner.limits(*args)

    def choose(self, requests: Sequence[Any], candidates: Sequence[Any], load: Any) -> Any:
        self._meter.charge(self._cost.choosing, sum(map(bool, candidates)))
        return self._inner.choose(requests, candidates, load)


def charge(engine: Any, model: Any, cost: Any) -> Meter:
    """Charge an engine's attempts from now on."""
    meter = Meter(model)
    drafters = engine.setup.drafters._drafters
    for name, drafter in drafters.items():
        drafters[name] = ChargedDrafter(drafter, meter, cost)
    planner = ChargedPlanner(engine.setup.planner, meter, cost)
    engine._runner.setup = replace(engine.setup, planner=planner)
    return meter


def params_of(trace: Any, longest: int, ends: frozenset[int]) -> SamplingParams:
    """An answer that ended by itself was allowed more."""
    if trace.output[-1] in ends and not ends.intersection(trace.output[:-1]):
        return SamplingParams(max_tokens=max(len(trace.output), longest))
    return SamplingParams(max_tokens=len(trace.output), ignore_eos=True)


def one_by_one(traces: Any, curve: Any) -> dict[str, Any]:
    """The speedup of each answer, and the share of the time that attempts took."""
    model = ReplayModel(traces, curve)
    speedups: dict[str, float] = {}
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation("auto")
        meter = charge(engine, model, attempts_of(curve))
        whole = model.seconds
        for trace in traces.traces:
            began = model.seconds
            model.answer_with(trace, curve)
            params = params_of(trace, model.longest_answer, model.tokenizer.end_tokens)
            done = engine.generate(list(trace.prompt), params, prediction=trace.prediction)
            check(trace, done.tokens)
            plain_s = (len(trace.output) - 1) * curve.v1_ms / 1e3
            speedups[trace.id] = plain_s / (model.seconds - began)
        share = meter.seconds / (model.seconds - whole)
        check_notes(engine.notes)
    return {"speedups": speedups, "attempts": share}


def at_once(traces: Any, curve: Any, level: int, *, ragged: bool) -> dict[str, Any]:
    """The speedup of all answers together with `level` requests at a time."""
    seconds: dict[str, float] = {}
    share = 0.0
    for speculation in ("off", "auto"):
        model = ReplayModel(traces, curve, sequences=level, ragged=ragged)
        ends = model.tokenizer.end_tokens
        with Engine(model, clock=model.clock) as engine:
            engine.set_speculation(speculation)
            meter = charge(engine, model, attempts_of(curve))
            began = model.seconds
            requests = [
                engine.add(
                    list(trace.prompt),
                    params_of(trace, model.longest_answer, ends),
                    prediction=trace.prediction,
                )
                for trace in traces.traces
            ]
            for trace, done in zip(traces.traces, engine.run(requests), strict=True):
                check(trace, done.tokens)
            seconds[speculation] = model.seconds - began
            share = meter.seconds / seconds[speculation]
            check_notes(engine.notes if speculation == "auto" else ())
    return {"speedups": {"all": seconds["off"] / seconds["auto"]}, "attempts": share}


def check(trace: Any, tokens: Sequence[int]) -> None:
    """Stop where an answer is not the recorded one."""
    if tuple(tokens) != tuple(trace.output):
        raise SystemExit(f"The replay of {trace.id!r} gave another answer than was recorded.")


def check_notes(notes: Sequence[str]) -> None:
    """Stop where a drafter failed."""
    if notes:
        raise SystemExit("\n".join(notes))


def main(job: Mapping[str, Any]) -> None:
    """Replay one job: `curve`, `seed`, `requests`, `ragged`, and `traces`: a file, None for those shipped."""
    shipped = files("foredraft.bench").joinpath("traces.jsonl.gz")
    with as_file(shipped) as path:
        recorded = read_traces(Path(job["traces"]) if job["traces"] else path)
    usable = [trace for trace in recorded.traces if len(trace.output) > 1 and trace.prompt]
    if job["seed"]:  # 0: the order of the file
        random.Random(job["seed"]).shuffle(usable)
    traces, curve = replace(recorded, traces=usable), find_curve(job["curve"])
    run: Callable[[], dict[str, Any]] = (
        (lambda: one_by_one(traces, curve))
        if job["requests"] == 1
        else (lambda: at_once(traces, curve, job["requests"], ragged=job["ragged"]))
    )
    print(json.dumps(run()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
