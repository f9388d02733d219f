"""Fields of a body that this server does not have: some are ignored, others refused.

Clients support many servers and send fields that only some of them have. A field that does not affect the
answer is ignored, and listed in the response header `x-foredraft-ignored` and in the log. Refused are fields
that would change the answer (a video, an unsupported sampler), and probable misspellings of our own fields:
an ignored `max_token` is worse than an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

REFUSED, MISSPELT, TOO_MANY = "refused_field", "misspelt_field", "too_many_fields"
"""Types of pydantic's errors."""

MOST_KEYS = 100
"""Maximum keys of one object: no API has as many fields."""

MOST_UNKNOWN = 64
"""Maximum unknown names in one body, each counted once per kind of object: comparing one takes 50 µs."""

LONGEST_NAME = 64
"""Maximum length of a name that is compared with ours."""

ALIKE = 0.84
"""Minimum of difflib's ratio for a misspelling: `max_token`, `temprature`, `presence_penality` exceed it."""


NOTHING: tuple[object, ...] = (False, 0, "", [], {})
"""Values that turn nearly any field off."""


class Refused(NamedTuple):
    """Why a field is refused, and its values without effect."""

    why: str
    off: tuple[object, ...] = NOTHING


_TEXT = Refused("this engine only reads text and images, and writes text; remove it")
_IMAGE = Refused(
    'send images as parts of a message\'s content: {"type": "image_url", "image_url": {"url": …}}'
)
_TOOLS = Refused(
    "searches and other servers are not available; send your own functions as tools", (False, 0, "", [])
)
_BODY = Refused("put its content into the body itself")
_PROMPT = Refused("the prompt is built from the messages alone; remove it")
_PREFIX = Refused(
    "a last message of the assistant is continued by /v1/messages, and by /v1/chat/completions with "
    "continue_final_message; remove it"
)
_FORM = Refused("use response_format, a grammar or a regex")
_BANNED = Refused("use logit_bias, a grammar or a regex")


_ADAPTERS = "send an adapter's name as model (GET /v1/models lists them)"


def _sampler(*off: object) -> Refused:
    return Refused("this sampling method is not supported; remove it", (*NOTHING, *off))


def _other_api(*off: object) -> Refused:
    return Refused("this path does not have this field, unlike /v1/chat/completions", (*NOTHING, *off))


MEANING: Mapping[str, Refused] = {
    **dict.fromkeys(("image", "images", "image_url"), _IMAGE),
    **dict.fromkeys(("video", "videos", "video_url", "input_audio"), _TEXT),
    **dict.fromkeys(("audio", "voice", "speech", "file", "files"), _TEXT),
    "modalities": Refused(_TEXT.why, (*NOTHING, ["text"])),
    **dict.fromkeys(("web_search", "web_search_options", "search_parameters", "enable_search"), _TOOLS),
    **dict.fromkeys(("plugins", "mcp_servers"), _TOOLS),
    **dict.fromkeys(("extra_body", "options"), _BODY),
    **dict.fromkeys(("chat_template", "documents", "raw"), _PROMPT),
    **dict.fromkeys(("truncate_prompt_tokens", "negative_prompt"), _PROMPT),
    **dict.fromkeys(("prefix", "partial"), _PREFIX),
    **dict.fromkeys(("structural_tag", "guided_whitespace_pattern", "whitespace_pattern"), _FORM),
    **dict.fromkeys(("grammar_lazy", "grammar_triggers"), _FORM),
    "ebnf": Refused("send it as grammar, in llama.cpp's notation (GBNF) or Lark's"),
    "stop_regex": Refused("use stop, with the texts themselves"),
    **dict.fromkeys(("bad_words", "bad_words_ids", "allowed_token_ids", "banned_tokens"), _BANNED),
    **dict.fromkeys(("banned_strings", "logits_processors", "sequence_bias"), _BANNED),
    **dict.fromkeys(("typical_p", "typ_p", "tfs", "tfs_z", "length_penalty", "guidance_scale"), _sampler(1)),
    "num_beams": _sampler(1),
    "do_sample": Refused("use a temperature of 0 for greedy decoding", (True,)),
    "continue_final_message": _other_api(),
    "add_generation_prompt": Refused(_PROMPT.why, (True,)),
    **dict.fromkeys(("mirostat", "mirostat_mode", "top_a", "dry_multiplier", "smoothing_factor"), _sampler()),
    **dict.fromkeys(("xtc_probability", "dynatemp_range", "epsilon_cutoff", "eta_cutoff"), _sampler()),
    **dict.fromkeys(("use_beam_search", "no_repeat_ngram_size", "penalty_alpha"), _sampler()),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), _sampler(-1)),
    **dict.fromkeys(
        ("lora", "lora_request", "lora_adapters"),
        Refused(_ADAPTERS),
    ),
    **dict.fromkeys(("n", "best_of", "repetition_penalty", "repeat_penalty"), _other_api(1)),
    **dict.fromkeys(("logit_bias", "min_p", "presence_penalty", "frequency_penalty"), _other_api()),
    **dict.fromkeys(("min_tokens", "ignore_eos", "stop_token_ids", "grammar", "regex"), _other_api()),
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_choice", "json_schema"), _other_api()),
    "suffix": Refused("only /v1/completions fills gaps"),
    "format": Refused("send it as response_format"),
    "echo": Refused("only /v1/completions repeats the prompt"),
    "moderation": Refused("moderation is not supported; remove it"),
    "functions": Refused("send functions as tools"),
    "function_call": Refused("send it as tool_choice, and functions as tools"),
}
"""Fields that would change the answer, wherever they are in a body."""

ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "messages": ("input", "prompt"),
    "prompt": ("messages",),
    "input": ("messages", "prompt"),
    "max_tokens": ("max_output_tokens",),
    "max_completion_tokens": ("max_tokens", "max_output_tokens"),
    "max_output_tokens": ("max_tokens",),
    "max_new_tokens": ("max_tokens", "max_output_tokens"),
    "max_length": ("max_tokens", "max_output_tokens"),
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "stop_sequence": ("stop", "stop_sequences"),
    "system": ("instructions", "messages"),
    "instructions": ("system", "messages"),
    "response_format": ("text", "output_config"),
    "schema": ("response_format",),
}
"""Other APIs' names for our fields: not ignored, because a client has confused the APIs."""

WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default", "standard_only"),
    "speed": ("standard",),
    "verbosity": ("medium",),
    "effort": ("high",),
    "truncation": ("disabled",),
    "prompt_cache_retention": ("in_memory",),
    "include_obfuscation": (False,),
}
"""Values that request the existing behaviour: ignored without notice."""

PEERS = ("models", "reasoning_format", "speed")
"""Fields of other servers whose names are too similar to ours to be treated as misspellings."""


Shape = Collection[str] | Mapping[str, Any]
"""The names of an object's fields; as a mapping, with the shapes of nested objects, or None."""


Passed = set[tuple[str, frozenset[str]]]
"""The unknown names of a body that may be ignored, each with the known names at its place."""


def check(
    given: Mapping[str, Any], shape: Shape, passed: Passed | None = None, at: tuple[str | int, ...] = ()
) -> None:
    """Raises ValidationError for a key that must not be ignored, with its place, and for too many keys.
    `passed` collects the ignored names over all objects of a body.
    """
    passed = set() if passed is None else passed
    if len(given) > MOST_KEYS:
        why = f"an object with {len(given)} keys is not part of this API"
        raise _error(TOO_MANY, at, None, why=why)
    for name, value in given.items():
        if name not in shape:
            _check_unknown(name, value, frozenset(shape), passed, at)
        elif isinstance(shape, Mapping) and isinstance(value, Mapping) and shape[name] is not None:
            check(value, shape[name], passed, (*at, name))


def ignored(given: Mapping[str, Any], shape: Shape, at: str = "") -> Iterator[str]:
    """The paths of ignored keys, except those that have no effect anywhere."""
    for name, value in given.items():
        if name not in shape:
            if value is not None and name not in MEANING and value not in WITHOUT_EFFECT.get(name, ()):
                yield at + name
        elif isinstance(shape, Mapping) and isinstance(value, Mapping) and shape[name] is not None:
            yield from ignored(value, shape[name], f"{at}{name}.")


def _check_unknown(
    name: str, value: object, known: frozenset[str], passed: Passed, at: tuple[str | int, ...]
) -> None:
    refused = MEANING.get(name)
    if value is None or (name, known) in passed:  # clients send null for omitted fields
        return
    if refused is not None:
        if value not in refused.off:
            raise _error(REFUSED, (*at, name), value, why=refused.why)
        return
    if len(passed) >= MOST_UNKNOWN:
        why = f"too many unknown fields; at most {MOST_UNKNOWN} are ignored in one body"
        raise _error(TOO_MANY, (*at, name), None, why=why)
    if (meant := _meant(name, known)) is not None:
        raise _error(MISSPELT, (*at, name), value, meant=meant)
    passed.add((name, known))


def _meant(name: str, known: frozenset[str]) -> str | None:
    """Our field that this name misspells, or that another API calls by this name."""
    for ours in ELSEWHERE.get(name, ()):
        if ours in known:
            return ours
    if name in PEERS or len(name) > LONGEST_NAME:
        return None
    bare = _bares(known)
    if _bare(name) in bare:
        return bare[_bare(name)]
    return next(iter(get_close_matches(name, [one for one in known if len(one) > 3], 1, ALIKE)), None)


@cache
def _bares(known: frozenset[str]) -> dict[str, str]:
    """Our fields by the letters of their names."""
    return {_bare(ours): ours for ours in known}


def _bare(name: str) -> str:
    """The letters of a name, the same for `maxTokens`, `max-tokens` and `max_tokens`."""
    return "".join(char for char in name.lower() if char.isalnum())


def _error(kind: Any, at: tuple[str | int, ...], value: object, **context: str) -> ValidationError:
    error = PydanticCustomError(kind, " ".join(f"{{{key}}}" for key in context), context)
    return ValidationError.from_exception_data("body", [InitErrorDetails(type=error, loc=at, input=value)])
