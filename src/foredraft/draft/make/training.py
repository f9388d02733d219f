"""Training a head within a time budget, and measuring it on answers that it has not seen.

A row of the head depends on itself only, so a batch is any rows of any answers. The first step reads the
target's hidden states, further ones its own, with the text's tokens: as in a draft that is right so far
(EAGLE-3's training-time test, Li et al. 2025, arXiv 2503.01840). The loss of a step is the Kullback-Leibler
divergence from the target's likeliest tokens, of those that the head can propose, and the cross entropy of
the likeliest.

The learning rate is steady after a warm-up, and falls to nothing at the end (Hu et al. 2024, arXiv
2404.06395): the end comes with the budget, or sooner where held-out acceptance stops rising.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from foredraft.draft.make.sizes import STEPS, sizes_for
from foredraft.draft.make.store import Examples
from foredraft.draft.make.torch_head import HeadNetwork
from foredraft.draft.make.workfolder import size
from foredraft.errors import CapacityError

RATE = 1e-3
WARM_UP = 50
"""Batches."""

BATCH = 256
"""Rows."""

DECAY = 0.3
"""Part of the training in which the rate falls."""

WEIGHTS = (1.0, 0.7, 0.5)
"""Of the losses of each step."""

SECOND_FROM, THIRD_FROM = 0.1, 0.5
"""Parts of the budget after which a second and a third step are unrolled."""

CERTAIN = 0.2
"""Weight of the cross entropy of the target's likeliest token."""

PATIENCE = 4
"""Measurements without a better one after which the rate falls early."""

MEASURED = 6_000
"""Rows that are measured at most."""

MEASUREMENTS = 24
"""In a whole training, if that is long enough."""

MEASURING = 0.05
"""Part of the time in which acceptance is measured, at most."""

_RISE = 5e-4


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`joint[d]`: the share of drafts of which tokens 1 to d + 1 are right; over `rows` places in answers
    that were not learned from. A token is right if it is the text's.
    """

    joint: tuple[float, ...]
    rows: int

    @property
    def by_depth(self) -> tuple[float, ...]:
        """Of each token, given that those before it are right."""
        before = (1.0, *self.joint)
        return tuple(own / of if of else 0.0 for own, of in zip(self.joint, before, strict=False))

    @property
    def length(self) -> float:
        """Accepted tokens of a draft of this length."""
        return sum(self.joint)


@dataclass(slots=True)
class Progress:
    """Where a training is. `elapsed`: its seconds so far, over all runs; `falling_from`: when the rate began
    to fall, in these seconds; `warming_from`: the batch at which the optimiser began; `ended_with`: the
    budget of the run that ended it.
    """

    elapsed: float = 0.0
    batches: int = 0
    warming_from: int = 0
    falling_from: float | None = None
    falling_until: float = 0.0
    measured: list[tuple[float, Acceptance]] = field(default_factory=list)
    done: bool = False
    ended_with: float = 0.0


class Trainer:
    """Trains `network` on `examples`. `embeddings` (target's vocabulary, width) are the target's,
    `vocabulary` the tokens that the head proposes, ascending. `budget`: seconds of training altogether.
    `threads`: at most, on a processor; 0 for all cores. `clock` gives seconds.
    """

    def __init__(
        self,
        network: HeadNetwork,
        examples: Examples,
        embeddings: npt.NDArray[np.float16],
        vocabulary: npt.NDArray[np.int64],
        *,
        budget: float,
        device: str = "cpu",
        threads: int = 0,
        rate: float = RATE,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.network = network.to(device)
        self.progress = Progress()
        self.best: tuple[Acceptance, dict[str, Tensor]] | None = None
        self._examples = examples
        self._device = device
        self._clock = clock
        self._budget = budget
        self._threads = threads or os.cpu_count() or 1
        self._rate = rate
        self._embeddings = torch.from_numpy(embeddings).to(device)
        self._vocabulary = torch.from_numpy(vocabulary).to(device)
        own = np.full(len(embeddings) + 1, -1, np.int64)  # the last is that of "no token", -1
        own[vocabulary] = np.arange(len(vocabulary))
        self._own = torch.from_numpy(own).to(device)
        self._optimizer = torch.optim.AdamW(network.trained(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
        self._lower = lower_precision(device)
        self._measuring_s = 0.0

    # --- training ----------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until it ends, at most."""
        progress = self.progress
        end = progress.falling_until if progress.falling_from is not None else self._budget
        return 0.0 if progress.done else max(0.0, end - progress.elapsed)

    def run(self, report: Callable[[], None], save: Callable[[], None], *, every: float = 60.0) -> None:
        """Train until the budget is spent, or acceptance has stopped rising. `report` is called about every
        second and after each measurement, `save` every `every` seconds and at the end.
        """
        progress = self.progress
        saved = told = self._clock()
        self._choose_threads()
        while not progress.done:
            began = self._clock()
            self._batch()
            progress.elapsed += self._clock() - began
            self._judge()
            now = self._clock()
            if now - told >= 1.0 or progress.done:
                told = now
                report()
            if now - saved >= every or progress.done:
                save()
                saved = self._clock()

    def _judge(self) -> None:
        """Measure where it is time, and decide how it goes on."""
        progress = self.progress
        last = progress.measured[-1][0] if progress.measured else 0.0
        ending = self.left <= 0.0
        apart = max(self._budget / MEASUREMENTS, self._measuring_s / MEASURING)
        if ending or progress.elapsed - last >= apart:
            began = self._clock()
            self._measure()
            self._measuring_s = self._clock() - began
            progress.elapsed += self._measuring_s
            self._choose_threads()
        if progress.falling_from is None and (
            progress.elapsed >= (1 - DECAY) * self._budget or self._stopped_rising()
        ):
            progress.falling_from = progress.elapsed
            room = max(0.0, self._budget - progress.elapsed)
            progress.falling_until = progress.elapsed + min(room, DECAY / (1 - DECAY) * progress.elapsed)
        elif ending:
            progress.done, progress.ended_with = True, self._budget

    def _choose_threads(self) -> None:
        """As many as are fastest at the moment: beside other busy processes fewer are, as each product waits
        for the last of its threads.
        """
        if self._device != "cpu" or self._threads == 1:
            torch.set_num_threads(self._threads if self._device == "cpu" else 1)
            return
        counts = sorted({1, (self._threads + 1) // 2, self._threads})
        times = {}
        for count in counts:
            torch.set_num_threads(count)
            times[count] = sum(_timed(torch.float32))
        torch.set_num_threads(min(counts, key=lambda count: times[count]))

    def _stopped_rising(self) -> bool:
        lengths = [found.length for _, found in self.progress.measured]
        if len(lengths) <= PATIENCE:
            return False
        return max(lengths[-PATIENCE:]) < max(lengths[:-PATIENCE]) + _RISE

    def _measure(self) -> None:
        found = self.acceptance()
        self.progress.measured.append((self.progress.elapsed, found))
        if self.best is None or found.length > self.best[0].length:
            self.best = found, self._weights()

    def _weights(self) -> dict[str, Tensor]:
        """A copy of the network's."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.network.state_dict().items()}

    def _batch(self) -> None:
        progress = self.progress
        factor = min(1.0, (progress.batches - progress.warming_from + 1) / WARM_UP)
        if progress.falling_from is not None:
            length = max(1e-9, progress.falling_until - progress.falling_from)
            factor *= max(0.0, 1.0 - (progress.elapsed - progress.falling_from) / length)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * factor
        rng = np.random.default_rng(progress.batches)
        rows = np.sort(rng.choice(self._examples.training, BATCH))
        loss = self._loss(rows, self._unrolled())
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.trained(), 1.0)
        self._optimizer.step()
        progress.batches += 1

    def _unrolled(self) -> int:
        part = self.progress.elapsed / self._budget
        if self.progress.falling_from is not None or part >= THIRD_FROM:
            return STEPS
        return 2 if part >= SECOND_FROM else 1

    def _loss(self, rows: npt.NDArray[np.int64], steps: int) -> Tensor:
        examples, left = self._examples, self._tensor(self._examples.left[rows])
        total = torch.zeros((), device=self._device)
        with self._lower():
            state = self.network.fuse(self._tensor(examples.features[rows]))
            for step in range(steps):
                places = np.minimum(rows + step + 1, len(examples.tokens) - 1)
                state = self.network.step(self._embedded(examples.tokens[places]), state)
                logits = self.network.logits(state).float()
                own = self._own[self._tensor(examples.likely[places]).long()]
                weights = self._tensor(examples.scores[places]).float().exp() * (own >= 0)
                each = _divergence(logits, own, weights)
                there = (left > step) & (weights.sum(1) > 0)
                total = total + WEIGHTS[step] * (each * there).sum() / there.sum().clamp_min(1)
        return total

    def _tensor(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _embedded(self, tokens: npt.NDArray[np.int32]) -> Tensor:
        return self._embeddings[self._tensor(tokens).long()].float()

    # --- measuring ---------------------------------------------------------------------------------------

    def acceptance(self, *, final: bool = False) -> Acceptance:
        """Of drafts of `STEPS` tokens that begin anywhere in answers that are held out: in those that the
        best weights are chosen on, or in the others, that nothing was chosen on.
        """
        rows = self._examples.final if final else self._examples.choosing
        if len(rows) > MEASURED:
            rows = rows[np.linspace(0, len(rows) - 1, MEASURED).astype(np.int64)]
        right = np.zeros(STEPS, np.int64)
        for first in range(0, len(rows), 2 * BATCH):
            right += self._right(rows[first : first + 2 * BATCH])
        return Acceptance(tuple(float(count) / max(1, len(rows)) for count in right), len(rows))

    def _right(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many drafts from these rows are right up to each depth."""
        examples = self._examples
        counts = np.zeros(STEPS, np.int64)
        alive = torch.ones(len(rows), dtype=torch.bool, device=self._device)
        with torch.no_grad(), self._lower():
            state = self.network.fuse(self._tensor(examples.features[rows]))
            for step in range(STEPS):
                places = np.minimum(rows + step + 1, len(examples.tokens) - 1)
                state = self.network.step(self._embedded(examples.tokens[places]), state)
                drafted = self._vocabulary[self.network.logits(state).argmax(-1)]
                following = np.minimum(places + 1, len(examples.tokens) - 1)
                inside = self._tensor(examples.left[rows] > step + 1)
                text = torch.where(
                    inside,
                    self._tensor(examples.tokens[following]).long(),
                    self._tensor(examples.likely[places, 0]).long(),
                )
                alive &= drafted == text
                counts[step] = int(alive.sum())
        return counts

    # --- checkpoints -------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything that is needed to go on, atomically: at the end, the best weights only, a quarter
        of it. Raises CapacityError if it cannot be written.
        """
        ended = self.progress.done
        state = {
            "vocabulary": self._vocabulary.cpu(),
            "network": None if ended else self.network.state_dict(),
            "optimizer": None if ended else self._optimizer.state_dict(),
            "progress": asdict(self.progress),
            "best": None if self.best is None else (asdict(self.best[0]), self.best[1]),
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            torch.save(state, temporary)
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError where the disk is full
            raise CapacityError(
                f"The state of the training cannot be written to {path.parent}, where "
                f"{size(shutil.disk_usage(path.parent).free)} are free.",
                hint="Free some space; the same command then goes on from what was written last.",
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    def resume(self, path: Path) -> None:
        """Go on from what `save` wrote. The best weights are measured again: there may be other held-out
        answers than then, and measurements on those say nothing here.

        Raises OSError, and RuntimeError, ValueError, KeyError, TypeError or pickle.UnpicklingError if it is
        damaged, of another network, or of a head that proposes other tokens.
        """
        state = torch.load(path, map_location=self._device, weights_only=True)
        if not torch.equal(state["vocabulary"], self._vocabulary):
            raise ValueError("its head proposes other tokens")
        values = dict(state["progress"])
        measured = [(elapsed, Acceptance(**found)) for elapsed, found in values.pop("measured")]
        progress = Progress(**values, measured=measured)
        best = state["best"]
        if best is not None:
            self.network.load_state_dict(best[1])
            self.best = self.acceptance(), self._weights()
            if self.best[0] != Acceptance(**best[0]):
                progress.measured = []
        if state["network"] is not None:
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
        self.progress = progress
        if progress.done and progress.ended_with < 0.9 * self._budget:  # it has more time now
            progress.done, progress.falling_from, progress.measured = False, None, []
            progress.warming_from = progress.batches

    def use_best(self) -> Acceptance:
        """Give the network the weights that were measured to be the best."""
        assert self.best is not None, "a training ends with a measurement"
        self.network.load_state_dict(self.best[1])
        return self.best[0]


def _divergence(logits: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """For each row KL(target ‖ head) up to a constant, over the tokens that both have, and `CERTAIN` times
    the cross entropy of the likeliest of them.
    """
    logs = logits.gather(1, own.clamp_min(0)) - torch.logsumexp(logits, -1, keepdim=True)
    share = weights / weights.sum(1, keepdim=True).clamp_min(1e-6)
    likeliest = functional.one_hot(weights.argmax(1), weights.shape[1])
    return -((share + CERTAIN * likeliest) * logs).sum(1)


def stored_vocabulary(path: Path) -> npt.NDArray[np.int64]:
    """The tokens that the head of a checkpoint proposes. Raises what `Trainer.resume` does."""
    tokens: npt.NDArray[np.int64] = torch.load(path, map_location="cpu", weights_only=True)[
        "vocabulary"
    ].numpy()
    return tokens


def stored_head(path: Path, width: int) -> tuple[HeadNetwork, npt.NDArray[np.int64]]:
    """The best head of a checkpoint, and the tokens that it proposes. Raises what `Trainer.resume` does."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    vocabulary: npt.NDArray[np.int64] = state["vocabulary"].numpy()
    network = HeadNetwork(
        sizes_for(width, len(vocabulary)),
        scale=torch.ones(3 * width),
        output=torch.empty(len(vocabulary), width),
        output_norm=torch.ones(width),
    )
    network.load_state_dict(state["best"][1])
    return network, vocabulary


def lower_precision(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Products in bf16 where this device computes them faster than in single precision: half the time on
    processors with AVX512-BF16 or AMX, ten times as long on others.
    """
    if device != "cpu":
        return lambda: torch.autocast(device, torch.bfloat16)
    times = {kind: min(_timed(kind)) for kind in (torch.float32, torch.bfloat16)}
    if times[torch.bfloat16] < 0.8 * times[torch.float32]:
        return lambda: torch.autocast("cpu", torch.bfloat16)
    return nullcontext


def _timed(kind: torch.dtype) -> Iterator[float]:
    """Seconds of a product, a few times."""
    left, right = torch.ones(256, 512, dtype=kind), torch.ones(512, 1024, dtype=kind)
    for _ in range(5):
        began = perf_counter()
        left @ right
        yield perf_counter() - began
