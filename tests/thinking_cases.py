"""Chat templates of models that think, in our own words, and a model that thinks and answers as told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import http_server
from claude_server import TemplateTokenizer
from foredraft.testing import FakeModel
from foredraft.types import Logits
from http_server import END, Running, serving

QWEN = """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}
{{- '<|im_start|>system\\n<tools>' + tools | tojson + '</tools><tool_call><|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content %}{%- set thought = '' %}
{%- if message.reasoning_content is string %}{% set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{ content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
"""The model opens its thought; earlier ones are kept while it calls tools."""

DEEPSEEK = """{{ bos_token }}{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|eos|>' }}
{%- else %}{{ '<|User|>' + message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""
"""The prompt opens the thought; earlier ones, which stand in the text, are dropped."""

GLM = """[gMASK]<sop>{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|assistant|>' }}
{%- if message.reasoning_content %}{{ '\\n<think>' + message.reasoning_content.strip() + '</think>' }}
{%- else %}{{ '\\n<think></think>' }}{% endif %}
{{- '\\n' + message.content.strip() }}
{%- else %}{{ '<|' + message.role + '|>\\n' + message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}
{{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}{% endif %}"""
"""The model opens its thought; all earlier ones are kept."""

MISTRAL = """{{ bos_token }}{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.content is string %}{{ message.content + eos_token }}
{%- else %}{% for block in message.content %}
{%- if block['type'] == 'thinking' %}{{ '[THINK]' + block['thinking'] + '[/THINK]' }}
{%- else %}{{ block['text'] }}{% endif %}{% endfor %}{{ eos_token }}{% endif %}
{%- endfor %}"""
"""Thoughts are content parts."""

GPT_OSS = """{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.thinking and loop.last and not add_generation_prompt %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}{# functions. #}"""

SMOLLM = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and '</think>' in message.content %}
{{- message.content.split('</think>')[-1].lstrip('\\n') }}
{%- else %}{{ message.content }}{% endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}
{%- endif %}"""

TEMPLATES = {
    "qwen": QWEN,
    "deepseek": DEEPSEEK,
    "glm": GLM,
    "mistral": MISTRAL,
    "gpt-oss": GPT_OSS,
    "smollm": SMOLLM,
}
CUES = ("<|im_start|>assistant\n", "<|Assistant|>", "<|assistant|>", "[/INST]", "<|start|>assistant")
ASKED: list[Any] = [{"role": "user", "content": "How many?"}]
THOUGHT = "Two and two, let me see: they are four."
ANSWER = "Four."


def said_after(prefix: Sequence[int]) -> str:
    """The answer so far, with what the prompt has of it."""
    text = bytes(token for token in prefix if token < END).decode("utf-8", "replace")
    begin = max((text.rfind(cue) + len(cue) for cue in CUES if cue in text), default=0)
    if text[:begin].endswith("<|start|>assistant"):  # the answer itself begins another message
        asked = max(text.rfind("<|start|>user"), 0)
        begin = text.find("<|start|>assistant", asked) + len("<|start|>assistant")
    return text[begin:]


def thinking_model(
    template: str,
    thought: str = THOUGHT,
    answer: str = ANSWER,
    **options: Any,
) -> FakeModel:
    """Opens a thought unless the prompt has, writes and ends it, and answers; also where it is cut short."""
    tokenizer = TemplateTokenizer(template)
    form = tokenizer.template_traits.thought
    assert form is not None

    def logits(prefix: Sequence[int]) -> Logits:
        said = said_after(prefix)
        behind = said.rfind(form.closing)
        if behind >= 0:
            wanted, done = form.after.split(form.closing)[1] + answer, said[behind + len(form.closing) :]
            if not wanted.startswith(done):
                wanted, done = answer, done.lstrip()
            token = wanted[len(done)].encode()[0] if len(done) < len(wanted) else END
        else:
            whole = form.before + thought + form.after
            done = said.lstrip()
            token = whole[len(done)].encode()[0] if whole.startswith(done) else ord(form.closing[0])
        row = np.zeros(258, np.float32)
        row[: ord(" ") + 1] = -20.0
        row[token] = 30.0
        return row

    model = FakeModel(258, logits=logits, context_length=8192, **options)
    model.tokenizer = tokenizer
    return model


@contextmanager
def thinking(
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    thought: str = THOUGHT,
    answer: str = ANSWER,
    **options: Any,
) -> Iterator[Running]:
    """A server with such a model."""

    def model(**_: Any) -> FakeModel:
        return thinking_model(template, thought, answer)

    monkeypatch.setattr(http_server, "writing_model", model)
    with serving(**options) as running:
        yield running
