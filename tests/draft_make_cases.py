"""What tests of `draft make` share: a target made of numbers, whose next token depends on the last one only,
and a clock that does not depend on the machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from foredraft.draft.make.parts import Part
from foredraft.draft.make.sizes import sizes_for
from foredraft.draft.make.store import TOP, Examples, Labelled, RowStore
from foredraft.draft.make.torch_head import HeadNetwork
from foredraft.draft.make.training import Trainer

VOCABULARY = 48
WIDTH = 32
LENGTH = 40


class Steps:
    """A clock on which everything takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class NumberTarget:
    """Its next token is `following[last]`; its features are the embedding of the last token, three times."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        order = rng.permutation(VOCABULARY)
        self.following = np.empty(VOCABULARY, np.int64)
        self.following[order] = np.roll(order, -1)  # one cycle: every text meets every token sooner or later
        self.embeddings = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float16)
        self.output = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
        self._rng = rng

    def answer(self) -> Labelled:
        """The rows of one text."""
        tokens = [int(self._rng.integers(VOCABULARY))]
        while len(tokens) < LENGTH:
            tokens.append(int(self.following[tokens[-1]]))
        features = np.tile(self.embeddings[tokens].astype(np.float32), (1, 3))
        likely = np.tile(np.arange(TOP, dtype=np.int32), (LENGTH, 1))
        likely[:, 0] = self.following[tokens]
        scores = np.tile(np.log(np.asarray([0.93, *[0.01] * (TOP - 1)], np.float32)), (LENGTH, 1))
        return Labelled(features, np.asarray(tokens, np.int32), likely, scores)

    def examples(self, folder: Path, answers: int = 60) -> Examples:
        """Some texts, of which every sixth is held out: in turns to choose on and for the last figure."""
        store = RowStore(folder, 3 * WIDTH)
        for _ in range(answers):
            store.add(self.answer(), greedy=True)
        held_out = {0: Part.CHOOSING, 6: Part.FINAL}
        return store.read([held_out.get(number % 12, Part.LEARNING) for number in range(answers)])

    def trainer(self, examples: Examples, batches: float = 300.0) -> Trainer:
        """Of a head of all tokens. A batch takes two seconds on its clock."""
        torch.manual_seed(1)
        network = HeadNetwork(
            sizes_for(WIDTH, VOCABULARY),
            scale=torch.from_numpy(examples.scale()),
            output=torch.from_numpy(self.output),
            output_norm=torch.ones(WIDTH),
        )
        vocabulary: npt.NDArray[np.int64] = np.arange(VOCABULARY)
        return Trainer(
            network,
            examples,
            self.embeddings,
            vocabulary,
            budget=batches,
            threads=1,
            clock=Steps(),
        )
