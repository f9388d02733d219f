"""Flags for other tools that say what was measured best here: the way back from `foredraft.aliases`.

    foredraft profile MODEL --json profile.json
    python -m lab.export profile.json vllm

The shipped traces are replayed with a grid of static settings on the measured curve. A drafter is recommended
only where the tool has it with the options it was measured with. What a tool lacks, or has and never reads,
is passed over in favour of the next best.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from foredraft.bench.curves import Curve, find_curve
from foredraft.bench.trace import TraceSet, shipped_traces
from foredraft.config import parse_speculation
from foredraft.drafters.suffix import MIN_SURVIVAL, SHORTEST_MATCH
from foredraft.errors import ConfigError
from foredraft.types import MAX_DRAFT_TOKENS
from lab.grid import rank_static
from lab.live import run

Options: TypeAlias = Mapping[str, int | float | str]

Ranked: TypeAlias = tuple[str, Options, float]
"""A drafter's name, its options, and the speedup over plain decoding that was measured with them."""

PAYS = 1.0
"""The least speedup that is recommended."""

_LLAMA_FLAGS = {
    "ngram-simple": {"n": "--spec-ngram-simple-size-n", "m": "--spec-ngram-simple-size-m"},
    "ngram-map-k": {"n": "--spec-ngram-map-k-size-n", "m": "--spec-ngram-map-k-size-m"},
    "ngram-map-k4v": {
        "n": "--spec-ngram-map-k4v-size-n",
        "m": "--spec-ngram-map-k4v-size-m",
        "min-hits": "--spec-ngram-map-k4v-min-hits",
    },
    "ngram-mod": {
        "n": "--spec-ngram-mod-n-match",
        "min": "--spec-ngram-mod-n-min",
        "max": "--spec-ngram-mod-n-max",
    },
    "ngram-cache": {"static": "--lookup-cache-static", "dynamic": "--lookup-cache-dynamic"},
    "draft-model": {
        "model": "--spec-draft-model",
        "max": "--spec-draft-n-max",
        "min": "--spec-draft-n-min",
        "min-p": "--spec-draft-p-min",
    },
}

_LLAMA_TYPES = {"draft-model": "draft-simple"}

_LLAMA_FIXED = {
    # llama.cpp has a flag for the hits and, for these two, never reads it.
    "ngram-simple": {"min-hits": 1},
    "ngram-map-k": {"min-hits": 1},
    "ngram-cache": {"n-min": 1, "n-max": 4, "max": 8},
    "draft-model": {"ctx": 0},
}
"""Options that llama-server does not have, with the only value that it runs with."""

MATCHED, COPIED = 12, 48
"""n and m of `ngram-simple` where the options do not say."""

DRAFT_TOKENS = 16
"""`max` of a draft model where the options do not say."""

_VLLM_LONGEST_MATCH = 16
"""vLLM looks for the longest match up to a bound, `suffix` without one: longer ones say nothing new."""


def recommend(ranking: Sequence[Ranked], tool: str) -> str:
    """The flags that make `tool` draft with the best of `ranking` (best first) that it has, below comment
    lines that say what to expect; comments only where nothing pays. Raises ConfigError for an unknown tool.
    """
    if tool not in _WRITERS:
        raise ConfigError(f"There is no export for {tool!r}.", hint=f"There is one for: {', '.join(TOOLS)}.")
    if not ranking:
        return "# No drafter was measured: there is nothing to recommend.\n"
    best = ranking[0]
    if best[2] < PAYS:
        return (
            "# Speculation does not pay on this curve: run without. "
            f"The best drafter, {_text(best)}, would give {best[2]:.2f} × plain decoding.\n"
        )
    paying = [entry for entry in ranking if entry[2] >= PAYS]
    chosen = next((entry for entry in paying if _flags(entry, tool)), None)
    lines = [f"# Nothing that {tool} has pays on this curve: run without speculation."]
    if chosen is not None:
        expected = f"# {_text(chosen)}: {chosen[2]:.2f} × plain decoding expected on this curve"
        lines = [f"{expected}, as replayed with Foredraft's drafter of that name."]
    if chosen is not best:
        lines.append(f"# {_text(best)} would give {best[2]:.2f} ×, but {tool} does not have it.")
    if tool == "vllm":
        lines.append("# vLLM has its own cost curve, and longer drafts may pay there: measure it.")
    if chosen is not None:
        lines.append(shlex.join(_flags(chosen, tool)))
    return "\n".join(lines) + "\n"


def _flags(entry: Ranked, tool: str) -> list[str]:
    return _WRITERS[tool](entry[0], {key: _number(value) for key, value in entry[1].items()})


def _text(entry: Ranked) -> str:
    """As in a speculation string."""
    name, options, _ = entry
    return name + (":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else "")


def _llama_server(name: str, options: Options) -> list[str]:
    """Nothing where llama-server cannot run the drafter with these options."""
    flags = _LLAMA_FLAGS.get(name)
    if flags is None:
        return []
    fixed = _LLAMA_FIXED.get(name, {})
    words = ["--spec-type", _LLAMA_TYPES.get(name, name)]
    if name == "draft-model":
        options = {**options, "max": options.get("max", DRAFT_TOKENS)}
    for key, value in options.items():
        if key in flags:
            words += [flags[key], str(value)]
        elif fixed.get(key) != value:
            return []
    return words


def _vllm(name: str, options: Options) -> list[str]:
    """Nothing where vLLM cannot run the drafter with these options."""
    writer = _VLLM_CONFIGS.get(name)
    config = writer(options) if writer else None
    return ["--speculative-config", json.dumps(config)] if config else []


def _vllm_ngram(options: Options) -> dict[str, Any] | None:
    if options.get("min-hits", 1) != 1 or not set(options) <= {"n", "m", "min-hits"}:
        return None
    n = options.get("n", MATCHED)
    return {
        "method": "ngram",
        "prompt_lookup_min": n,
        "prompt_lookup_max": n,
        "num_speculative_tokens": options.get("m", COPIED),
    }


def _vllm_suffix(options: Options) -> dict[str, Any] | None:
    if not set(options) <= {"min", "max", "min-p"}:
        return None
    shortest, least = int(options.get("min", SHORTEST_MATCH)), options.get("min-p", MIN_SURVIVAL)
    longest = options.get("max", MAX_DRAFT_TOKENS)
    if least == 0:
        return {
            "method": "ngram",
            "prompt_lookup_min": shortest,
            "prompt_lookup_max": max(shortest, _VLLM_LONGEST_MATCH),
            "num_speculative_tokens": longest,
        }
    if shortest != 1:
        return None
    return {
        "method": "suffix",
        "num_speculative_tokens": longest,
        "suffix_decoding_min_token_prob": least,
    }


def _vllm_draft_model(options: Options) -> dict[str, Any] | None:
    if "model" not in options or not set(options) <= {"model", "max"}:
        return None
    return {
        "method": "draft_model",
        "model": str(options["model"]),
        "num_speculative_tokens": options.get("max", DRAFT_TOKENS),
    }


def _number(value: int | float | str) -> int | float | str:
    """An option's value as the number it stands for: those of a speculation string are text."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


_VLLM_CONFIGS = {
    "ngram-simple": _vllm_ngram,
    "suffix": _vllm_suffix,
    "draft-model": _vllm_draft_model,
}

_WRITERS: dict[str, Callable[[str, Options], list[str]]] = {
    "llama-server": _llama_server,
    "vllm": _vllm,
}

TOOLS = tuple(_WRITERS)
"""The tools that flags can be written for."""


def ranking(traces: TraceSet, curve: Curve) -> list[Ranked]:
    """The static settings with one drafter, best first: other tools combine drafters in ways of their own."""
    ranked: list[Ranked] = []
    for result in rank_static(traces, curve):
        stages = parse_speculation(result.speculation).stages
        if len(stages) == 1:
            ranked.append((stages[0].name, stages[0].options, result.speedup))
    return ranked


def main() -> None:
    """Print the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curve", help="a curve that ships, or a file of foredraft profile --json")
    parser.add_argument("tool", choices=TOOLS)
    args = parser.parse_args()
    print(recommend(ranking(shipped_traces(), find_curve(args.curve)), args.tool), end="")


if __name__ == "__main__":
    run(main)
