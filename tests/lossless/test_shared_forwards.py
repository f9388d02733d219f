"""Same tokens on the real default model beside a long prompt, and after a request had to wait for room."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.errors import OutOfKVError
from foredraft.types import Logits, Rows

pytestmark = pytest.mark.model

TEXT = "The ferry left the island before sunrise, and only the baker saw it go. He counted {} lamps. "
PARAMS = SamplingParams(temperature=0.8, seed=11, max_tokens=24, ignore_eos=True)


def test_tokens_are_those_of_the_request_alone(
    model_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(
        model_path,
        speculate="suffix",
        threads=1,
        gpu_layers=0,
        sequences=3,
        context_length=1024,
        cache_dir=shared_cache,
        remember=False,
    ) as engine:
        if not engine.model.capabilities.batch_invariant:
            pytest.skip(engine.model.capabilities.invariance_note)
        prompts = ["Once upon a time", "".join(TEXT.format(n) for n in range(25)), TEXT.format("nine")]
        alone = [engine.generate(prompt, PARAMS, scope=f"alone {n}") for n, prompt in enumerate(prompts)]

        forward, calls = engine.model.forward, [0]

        def full_at_times(batch: Sequence[Rows]) -> Logits:
            calls[0] += 1
            if calls[0] % 20 < 4 and engine.running_count > 1:
                raise OutOfKVError("full")
            return forward(batch)

        monkeypatch.setattr(engine.model, "forward", full_at_times)
        first = engine.stream(prompts[0], PARAMS, scope="0")
        head = next(first)
        late = [engine.add(prompt, PARAMS, scope=str(n)) for n, prompt in enumerate(prompts[1:], 1)]
        results = engine.run(late)
        assert engine.preemptions > 1
        tokens = [event.token for event in (head, *first) if hasattr(event, "token")]
        assert tuple(tokens) == alone[0].tokens
        assert [result.tokens for result in results] == [completion.tokens for completion in alone[1:]]
