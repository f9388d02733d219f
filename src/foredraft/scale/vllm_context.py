"""What drafters are made with where vLLM runs the model: its vocabulary's size, and no more of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from foredraft.errors import ConfigError
from foredraft.protocols import DrafterContext, Head, Model, RequestView
from foredraft.scale.vllm_config import Setting
from foredraft.templates.control_texts import NO_CONTROL_TEXTS, ControlTexts, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.types import Capabilities, Logits, Message, ModelInfo, Probs, Rollback

NOTE = "vLLM verifies the drafts; its arithmetic of drafted rows was not compared bit for bit"


def capabilities(setting: Setting) -> Capabilities:
    """What the model can do, as far as drafters and planner ask."""
    return Capabilities(
        rollback=Rollback.TRUNCATE,
        batch_invariant=False,
        invariance_note=NOTE,
        max_rows=setting.longest + 1,
        max_batch=setting.forward,
        sequences=setting.requests,
    )


def drafter_context(setting: Setting) -> DrafterContext:
    """What drafters are made with. Ids up to and including `setting.vocabulary` occur: that one stands for
    everything that is no token.
    """
    size = setting.vocabulary + 1
    target = ModelInfo(
        name=setting.model,
        path=setting.model,
        architecture="",
        file_hash="",
        vocab_size=size,
        vocab_hash=hashlib.sha256(f"vllm\0{setting.model}\0{size}".encode()).hexdigest(),
        context_length=setting.context,
        trained_context=setting.context,
        parameters=0,
        size_bytes=0,
        backend="vllm",
        device="",
    )
    return DrafterContext(
        target=target,
        capabilities=capabilities(setting),
        tokenizer=IdsOnly(size, setting.end_tokens),
        sampler=NoSampler(),
        load_model=_no_model,
        load_head=_no_head,
        store=setting.store,
    )


def _refuse(what: str) -> NoReturn:
    raise ConfigError(
        f"Inside vLLM a drafter has no {what}: it is told the ids of tokens, and nothing else.",
        hint="Use drafters that need the text alone: suffix, recycle and the n-gram ones.",
    )


def _no_model(path: str, *, sequences: int, context_length: int) -> Model:  # noqa: ARG001
    _refuse("second model")


def _no_head(path: str, *, sequences: int) -> Head:  # noqa: ARG001
    _refuse("head")


class NoSampler:
    """Instead of a sampler for draft models: there are none. Raises ConfigError."""

    def propose(
        self,
        logits: Logits,  # noqa: ARG002
        request: RequestView,  # noqa: ARG002
        prefix: Sequence[int],  # noqa: ARG002
    ) -> tuple[int, float, Probs | None]:
        _refuse("sampler")


@dataclass(frozen=True, slots=True)
class IdsOnly:
    """A tokenizer that knows the vocabulary's size and which ids end a text. Its other methods raise
    ConfigError.
    """

    vocab_size: int
    end_tokens: frozenset[int]
    chat_template: str | None = None
    template_traits: TemplateTraits = field(default_factory=TemplateTraits)
    control_texts: ControlTexts = NO_CONTROL_TEXTS
    infill_tokens: tuple[int, int, int] | None = None

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:  # noqa: ARG002
        _refuse("tokenizer")

    def encode_rendered(
        self,
        text: str,  # noqa: ARG002
        literal: Sequence[Span],  # noqa: ARG002
        *,
        begins: bool = True,  # noqa: ARG002
    ) -> list[int]:
        _refuse("tokenizer")

    def token_bytes(self, token: int) -> bytes:  # noqa: ARG002
        _refuse("tokenizer")

    def apply_chat_template(
        self,
        messages: Sequence[Message],  # noqa: ARG002
        *,
        add_generation_prompt: bool = True,  # noqa: ARG002
        **variables: object,  # noqa: ARG002
    ) -> str:
        _refuse("chat template")
