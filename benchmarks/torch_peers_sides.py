"""The sides of `torch_peers.py`: transformers' ways to generate, Foredraft on the same weights, and these."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from greenlet import getcurrent, greenlet

from foredraft.bench.results import Sample
from foredraft.bench.sides import EngineSide, Messages
from foredraft.bench.slices import whole
from foredraft.engine.engine import Engine
from foredraft.types import SamplingParams

PRUNE = Path(__file__).parents[1] / "scripts" / "prune_layers.py"


class Clock:
    """A streamer of transformers that notes when tokens come, by the clock `now`, and calls `breathe` after
    each. The prompt is the first that it is given.
    """

    def __init__(
        self, now: Callable[[], float] = perf_counter, breathe: Callable[[], None] = lambda: None
    ) -> None:
        self._now, self._breathe = now, breathe
        self._prompt_seen = self._answering = False
        self.first = self.last = 0.0

    def put(self, tokens: Any) -> None:  # noqa: ARG002 - the answer is returned whole
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.last = self._now()
        if not self._answering:
            self._answering, self.first = True, self.last
        self._breathe()

    def end(self) -> None:
        """Nothing is kept back."""


class TransformersAnswer:
    """An answer of transformers, which cannot pause by itself: on a stack of its own, left after a token when
    a turn is over. On a thread of its own it would have OpenMP threads of its own, and with more of them than
    processors OpenMP lets all sleep between two products: every side took 1.5 times as long.

    Not to be begun outside of `torch.inference_mode`: what is paused would leave it or enter it for others.
    """

    def __init__(self, generate: Callable[[Clock], Any], prompt_tokens: int) -> None:
        self._generate, self._prompt_tokens = generate, prompt_tokens
        self._spent, self._began, self._ends = 0.0, perf_counter(), 0.0
        self._clock = Clock(self._now, self._breathe)
        self._stack = greenlet(self._run)

    def go_on(self, seconds: float) -> Sample | None:
        """Generate for about so long; the sample when it is complete. Raises what transformers raises."""
        self._began = perf_counter()
        self._ends = self._began + seconds
        self._stack.parent = getcurrent()
        sample: Sample | None = self._stack.switch()
        return sample

    def _now(self) -> float:
        """Seconds of its turns."""
        return self._spent + perf_counter() - self._began

    def _breathe(self) -> None:
        """Between two tokens: wait for the next turn if this one is over."""
        if perf_counter() >= self._ends:
            self._spent = self._now()
            self._stack.parent.switch(None)

    def _run(self) -> Sample:
        made = self._generate(self._clock)
        tokens = tuple(made[0, self._prompt_tokens :].tolist())
        return Sample(
            text="",
            count=len(tokens),
            decode_ms=1e3 * (self._clock.last - self._clock.first),
            tokens=tokens,
            prompt_tokens=self._prompt_tokens,
            prompt_ms=1e3 * self._clock.first,
        )


class TransformersSide:
    """`generate` of transformers, with the arguments `how` that say how it speculates."""

    def __init__(self, name: str, model: Any, encode: Callable[[Messages], list[int]], **how: object) -> None:
        self.name = name
        self._model, self._encode, self._how = model, encode, how

    def restart(self) -> None:
        """It learns nothing from one answer to the next."""

    def begin(self, messages: Messages, params: SamplingParams) -> TransformersAnswer:
        """A greedy answer. Tokens that come together with the first one count as decoded in no time."""
        prompt = self._encode(messages)
        ids = torch.tensor([prompt], device=self._model.device)
        least = {"min_new_tokens": params.max_tokens} if params.ignore_eos else {}
        generate = partial(
            self._model.generate,
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=params.max_tokens,
            do_sample=False,
            **least,
            **self._how,
        )
        return TransformersAnswer(lambda clock: generate(streamer=clock), len(prompt))

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        """The answer without a pause."""
        with torch.inference_mode():
            return whole(self.begin(messages, params))

    def close(self) -> None:
        """Its model is shared."""


class ForedraftSide(EngineSide):
    """An engine whose passes know nothing of one another, their prompts' KV cells included."""

    def __init__(self, name: str, speculation: str, engine: Engine) -> None:
        super().__init__(name, engine)
        self._speculation = speculation
        self._passes = 0

    def restart(self) -> None:
        self._passes += 1
        self.scope = f"pass {self._passes}"
        self.engine.set_speculation(self._speculation)


def load_side(name: str, speculation: str, weights: Path, **options: Any) -> ForedraftSide:
    """An engine of its own, on the processor unless told otherwise. Ends the script if something of the
    setting was left out.
    """
    engine = Engine.load(weights, speculate=speculation, remember=False, **{"gpu_layers": 0} | options)
    if engine.notes:
        raise SystemExit(f"{name}: {'; '.join(engine.notes)}")
    return ForedraftSide(name, speculation, engine)


def load_transformers(folder: Path, dtype: str, *, gpu: bool = False) -> Any:
    """transformers' model, on the processor or on CUDA's first device, as it comes."""
    formats = {"fp32": torch.float32, "bf16": torch.bfloat16}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=formats[dtype]).eval()
    return model.to("cuda") if gpu else model


def weights_folder(model: Path, folder: Path) -> Path:
    """The model as a folder of the Hugging Face Hub: itself, or a GGUF's full-size weights in `folder`."""
    if model.suffix.lower() != ".gguf":
        return model if model.is_dir() else model.parent
    if not (folder / "config.json").exists():
        of_gguf = {"gguf_file": model.name}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            model.parent, dtype=torch.float32, **of_gguf
        )
        # transformers calls it quantised, and does not save such models: the same weights in one that is not.
        del loaded.config.quantization_config
        plain = type(loaded)(loaded.config)
        plain.load_state_dict(loaded.state_dict())
        plain.generation_config = loaded.generation_config
        transformers.AutoTokenizer.from_pretrained(model.parent, **of_gguf).save_pretrained(folder)
        plain.save_pretrained(folder)
    return folder


def pruned_folder(weights: Path, folder: Path, every: int) -> Path:
    """The model with one layer in `every`, as a folder."""
    if not (folder / "config.json").exists():
        subprocess.run(
            [sys.executable, str(PRUNE), str(weights), str(folder), "--every", str(every)], check=True
        )
    return folder
