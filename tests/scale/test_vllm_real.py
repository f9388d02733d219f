"""The proposer in vLLM itself, and the hook as the installed package has it.

They need an environment with vLLM, which is not that of the other tests: docs/vllm.md has how it is made.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from foredraft.drafters.suffix_store import describe
from foredraft.scale import vllm_config
from foredraft.scale.vllm import Hook, Proposer

VLLM = find_spec("vllm")
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(VLLM is None, reason="vLLM is not installed")]

CHILD = Path(__file__).parents[1] / "vllm_texts.py"
OWN = {"method": "custom_class", "model": vllm_config.CLASS, "num_speculative_tokens": 8}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 8,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and then",
    "There is more than one way to do it. " * 3,
    "def add(first, second):",
    "She said that",
]
PROMPTS = [[*range(20, 50)] * 3, [*range(60, 80)], [7, 8, 9] * 20, [*range(100, 150)], [*range(60, 80)], [5]]


# --- the installed package's source -------------------------------------------------------------------------


def source(name: str) -> ast.Module:
    """A module of vLLM, unexecuted: importing it takes half a minute, and warns."""
    assert VLLM is not None
    assert VLLM.origin is not None
    return ast.parse((Path(VLLM.origin).parent / name).read_text())


def calls(module: ast.Module, name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of that name."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] == name:
            yield node


def fields(module: ast.Module, name: str) -> set[str]:
    """What a class of the module has: fields and methods."""
    found = next(it for it in module.body if isinstance(it, ast.ClassDef) and it.name == name)
    annotated = {
        it.target.id for it in found.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)
    }
    return annotated | {it.name for it in found.body if isinstance(it, ast.FunctionDef)}


def test_the_class_is_made_with_the_configuration() -> None:
    module = source("v1/spec_decode/custom_class_proposer.py")
    made = calls(module, "user_class")
    assert [ast.unparse(call) for call in made] == ["user_class(vllm_config)"]
    assert next(iter(inspect.signature(Proposer).parameters)) == "vllm_config"


def test_the_call_is_the_hooks() -> None:
    """vLLM passes the hook's first arguments by place, and `slot_mappings` by name."""
    module = source("v1/worker/gpu_model_runner.py")
    wanted = list(inspect.signature(Hook.propose).parameters)[1:]
    own = [
        call
        for call in calls(module, "propose")
        if ast.unparse(call.func).startswith("cast(Any, self.drafter)")
    ]
    assert len(own) == 1
    places = [ast.unparse(argument).rsplit(".", 1)[-1] for argument in own[0].args]
    assert places + [str(keyword.arg) for keyword in own[0].keywords] == wanted
    assert list(inspect.signature(Proposer.propose).parameters)[1:] == wanted


def test_the_model_is_loaded_by_the_hooks_name() -> None:
    loads = list(calls(source("v1/worker/cpu_model_runner.py"), "load_model"))
    assert any(ast.unparse(call) == "self.drafter.load_model(self.model)" for call in loads)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("config/speculative.py", "SpeculativeConfig"),
        ("config/model.py", "ModelConfig"),
        ("config/scheduler.py", "SchedulerConfig"),
        ("config/parallel.py", "ParallelConfig"),
        ("config/device.py", "DeviceConfig"),
        ("config/vllm.py", "VllmConfig"),
    ],
)
def test_what_is_read_of_the_configuration_is_there(file: str, name: str) -> None:
    protocol = getattr(vllm_config, name)
    wanted = {it for it in (*protocol.__annotations__, *vars(protocol)) if not it.startswith("_")}
    assert wanted
    assert wanted <= fields(source(file), name)


# --- vLLM itself --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("vllm") / "tiny")


def own(speculate: str) -> dict[str, Any]:
    return {"speculative": OWN, "additional": {vllm_config.OPTIONS: {"speculate": speculate}}}


def run(folder: Path, task: dict[str, Any], *, fails: bool = False) -> list[dict[str, Any]]:
    """What `vllm_texts` answers."""
    assert VLLM is not None
    assert VLLM.origin is not None
    out = folder / "answers.json"
    threads = next(Path(VLLM.origin).parents[4].rglob("libiomp5.so"), None)  # the CPU build asks for it
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if threads is not None:
        environment["LD_PRELOAD"] = str(threads)
    command = [sys.executable, str(CHILD), str(out)]
    text = json.dumps({"engine": {"max_model_len": 512, "max_num_seqs": 4}, **task})
    done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads(out.read_text())
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert bool(errors) == fails, errors
    return answers


def greedy(count: int, **more: object) -> list[dict[str, object]]:
    return [{"temperature": 0, "max_tokens": 60 + 9 * i, "ignore_eos": True, **more} for i in range(count)]


def test_greedy_text_is_that_without_drafts(model: str, tmp_path: Path) -> None:
    """Prompts in chunks, more requests than rows, equal ones among them, one with penalties."""
    sampling = greedy(len(PROMPTS))
    sampling[3] |= {"repetition_penalty": 1.3, "presence_penalty": 0.5}
    plain, auto, static, ngram = run(
        tmp_path,
        {
            "model": model,
            "engine": {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64},
            "prompts": PROMPTS,
            "sampling": sampling,
            # vLLM 0.32 makes no engine in a process after one with ngrams.
            "configurations": [{}, own("auto"), own("suffix;recycle"), {"speculative": NGRAM}],
        },
    )
    assert ngram["texts"] == plain["texts"]
    assert auto["texts"] == plain["texts"]
    assert static["texts"] == plain["texts"]
    counted, stats = static["counted"], static["statistics"]
    accepted = sum(it["accepted"] for it in stats["drafters"].values())
    assert 50 < accepted <= counted["vllm:spec_decode_num_accepted_tokens"]
    drafted = sum(it["drafted"] for it in stats["drafters"].values())
    # A draft of a request that has no room in the step after is verified later, or never: that is not told.
    assert 0.9 * counted["vllm:spec_decode_num_draft_tokens"] <= drafted
    assert drafted <= counted["vllm:spec_decode_num_draft_tokens"]
    assert not stats["notes"]


def test_requests_that_are_preempted(model: str, tmp_path: Path) -> None:
    """A KV cache for two of the four."""
    engine = {"max_model_len": 512, "max_num_seqs": 4, "block_size": 32, "num_gpu_blocks_override": 20}
    sampling: list[dict[str, object]] = [{"temperature": 0, "max_tokens": 200, "ignore_eos": True}] * 4
    plain, static = run(
        tmp_path,
        {
            "model": model,
            "engine": engine,
            "prompts": PROMPTS[:4],
            "sampling": sampling,
            "configurations": [{}, own("suffix;recycle")],
        },
    )
    assert static["texts"] == plain["texts"]
    assert static["counted"]["vllm:num_preemptions"] > 0
    assert not static["statistics"]["notes"]


def test_a_seed_gives_the_same_text_where_nothing_is_drafted(model: str, tmp_path: Path) -> None:
    """With drafts vLLM's sampling keeps the distribution, and not the text: also with drafts of its own."""
    sampling = [{"temperature": 0.8, "seed": i, "max_tokens": 40, "ignore_eos": True} for i in range(4)]
    plain, off, ngram = run(
        tmp_path,
        {
            "model": model,
            "prompts": PROMPTS[:4],
            "sampling": sampling,
            "configurations": [{}, own("off"), {"speculative": NGRAM}],
        },
    )
    assert off["texts"] == plain["texts"]
    assert ngram["texts"] != plain["texts"]


def test_an_error_is_shown_in_our_words(model: str, tmp_path: Path) -> None:
    (answer,) = run(
        tmp_path,
        {
            "model": model,
            "prompts": [[5]],
            "sampling": greedy(1),
            "configurations": [own("heads")],
        },
        fails=True,
    )
    assert "needs the model's hidden states" in answer["error"]
    assert "Use drafters that need the text alone" in answer["error"]


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["question", "answer", "other"]},
        "parts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": "^[a-z]{3,9}$"},
                    "right": {"type": "boolean"},
                    "weight": {"enum": [1, 2.5, 100]},
                },
                "required": ["name", "right", "weight"],
                "additionalProperties": False,
            },
            "minItems": 4,
            "maxItems": 4,
        },
    },
    "required": ["kind", "parts"],
    "additionalProperties": False,
}


def check_schema(text: str) -> None:
    """The text is what SCHEMA describes, and nothing besides."""
    found = json.loads(text)
    assert set(found) == {"kind", "parts"}
    assert found["kind"] in {"question", "answer", "other"}
    assert len(found["parts"]) == 4
    for part in found["parts"]:
        assert set(part) == {"name", "right", "weight"}
        assert re.fullmatch("[a-z]{3,9}", part["name"])
        assert isinstance(part["right"], bool)
        assert part["weight"] in {1, 2.5, 100}


def test_structured_outputs_hold(model: str, tmp_path: Path) -> None:
    """With a schema, beside requests without one; the fifth's prompt is that of the first."""
    schema = {"structured_outputs": {"json": SCHEMA}}
    sampling: list[dict[str, object]] = [{"temperature": 0, "max_tokens": 300, **schema} for _ in range(5)]
    sampling[1] = {"temperature": 0, "max_tokens": 80, "ignore_eos": True}
    plain, static = run(
        tmp_path,
        {
            "model": model,
            "engine": {
                "max_model_len": 512,
                "max_num_seqs": 4,
                "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            },
            "prompts": [*TEXTS, TEXTS[0]],
            "sampling": sampling,
            "configurations": [{}, own("suffix;recycle")],
        },
    )
    assert static["strings"] == plain["strings"]
    assert static["texts"] == plain["texts"]
    for place in (0, 2, 3, 4):
        assert plain["ends"][place] == ["stop"]
        check_schema(plain["strings"][place][0])
    assert static["counted"]["vllm:spec_decode_num_accepted_tokens"] > 100
    assert not static["statistics"]["notes"]


def test_texts_that_end_at_stop_strings(model: str, tmp_path: Path) -> None:
    """What is looked for stands in the middle of the text without it, and drafts may go over it."""
    task = {"model": model, "prompts": TEXTS, "configurations": [{}]}
    (whole,) = run(tmp_path, {**task, "sampling": greedy(len(TEXTS))})
    stops = [text[len(text) // 2 :][:3] for (text,) in whole["strings"]]
    wanted = [[text[: text.index(stop)]] for (text,), stop in zip(whole["strings"], stops, strict=True)]
    sampling = [{**its, "stop": [stop]} for its, stop in zip(greedy(len(TEXTS)), stops, strict=True)]
    task |= {"configurations": [{}, own("suffix;recycle"), own("auto")], "sampling": sampling}
    for answer in run(tmp_path, task):
        assert answer["strings"] == wanted
        assert answer["ends"] == [["stop"]] * len(TEXTS)
        for (ids,), (all_ids,) in zip(answer["texts"], whole["texts"], strict=True):
            assert ids == all_ids[: len(ids)]
    assert sum(map(len, (text for (text,) in wanted))) > 100


def test_several_answers_to_a_prompt(model: str, tmp_path: Path) -> None:
    """Requests of one text at the beginning. They are sampled, so texts differ where something is drafted."""
    several = {"n": 3, "temperature": 0.8, "max_tokens": 80, "ignore_eos": True}
    plain, off, static = run(
        tmp_path,
        {
            "model": model,
            "prompts": PROMPTS[:2],
            "sampling": [several | {"seed": 1}, several | {"seed": 2}],
            "configurations": [{}, own("off"), own("suffix;recycle")],
        },
    )
    assert off["texts"] == plain["texts"]
    for texts in static["texts"]:
        assert [len(text) for text in texts] == [80] * 3
        assert texts[0] != texts[1] != texts[2]
    assert static["counted"]["vllm:spec_decode_num_draft_tokens"] > 50
    assert not static["statistics"]["notes"]


def test_requests_that_are_aborted(model: str, tmp_path: Path) -> None:
    """In the middle; others with the same prompt take their rows."""
    prompts = [PROMPTS[0], PROMPTS[3], PROMPTS[0], PROMPTS[1], PROMPTS[3], PROMPTS[0]]
    plain, static = run(
        tmp_path,
        {
            "model": model,
            "prompts": prompts,
            "sampling": greedy(len(prompts)),
            "abort": {"0": 20, "1": 31},
            "configurations": [{}, own("suffix;recycle")],
        },
    )
    assert static["texts"][2:] == plain["texts"][2:]
    for place, least in ((0, 20), (1, 31)):
        (before,), (after,) = plain["texts"][place], static["texts"][place]
        assert least == len(before) <= len(after) < 60
        assert after[:least] == before
    assert static["counted"]["vllm:spec_decode_num_accepted_tokens"] > 50
    assert not static["statistics"]["notes"]


EXECUTORS = {
    "in the engine's process": "vllm.v1.executor.uniproc_executor.UniProcExecutor",  # as with one GPU
    "in one of its own": "mp",
}


@pytest.mark.parametrize("ends", ["LLM", "SIGTERM"])
@pytest.mark.parametrize("executor", EXECUTORS.values(), ids=list(EXECUTORS))
def test_past_outputs_are_kept_when_vllm_ends(executor: str, ends: str, model: str, tmp_path: Path) -> None:
    """A second vLLM drafts from them. The prompts have nothing that repeats itself."""
    store = tmp_path / "store"
    options = {"speculate": "suffix", "store": str(store)}
    task = {
        "model": model,
        "processes": ends,
        "engine": {"max_model_len": 512, "max_num_seqs": 4, "distributed_executor_backend": executor},
        "prompts": [PROMPTS[1], PROMPTS[3]],
        "sampling": greedy(2),
        "configurations": [{"speculative": OWN, "additional": {vllm_config.OPTIONS: options}}],
    }
    (first,) = run(tmp_path, task)
    [stored] = describe(store)
    assert stored.outputs == 2
    assert stored.tokens >= sum(map(len, (text for (text,) in first["texts"])))
    (second,) = run(tmp_path, task)
    assert second["texts"] == first["texts"]
    accepted = [it["counted"]["vllm:spec_decode_num_accepted_tokens"] for it in (first, second)]
    assert accepted[1] > accepted[0] + 40
