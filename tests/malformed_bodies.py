"""Requests that no server may accept: valid bodies, each damaged in one way by a seeded generator."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import httpx

from valid_bodies import REQUIRED, VALID, Path

DEEP = 10_000
"""Levels of nesting: ten times what Python's own parser reads."""

LONG = 1_000_000
JSON = "application/json"

_FREE = {"schema", "parameters", "input_schema", "input", "logit_bias"}
"""Objects whose keys are the client's own."""

_SAMPLES: dict[str, Any] = {
    "bool": True,
    "int": 7,
    "float": 0.5,
    "str": "nonsense",
    "list": [[[]]],
    "dict": {"odd": {}},
}
_ALSO: dict[str, set[str]] = {
    "content": {"str", "list"},
    "system": {"str", "list"},
    "input": {"str", "list"},
    "stop": {"str", "list"},
    "prompt": {"str", "list"},
    "speculate": {"str", "int"},
}
"""Kinds that a field takes beside the one of its value; a whole number always does for a fraction."""

_BAD_NUMBERS: dict[str, tuple[float, ...]] = {
    "temperature": (-0.01, 2.5, float("nan"), float("inf"), -float("inf"), 10**400),
    "top_p": (0, -1, 1.01, float("nan"), float("inf")),
    "min_p": (-0.1, 1.5, float("nan")),
    "top_k": (-2, -(10**30), 10**30),
    "presence_penalty": (-2.1, 2.1, float("nan")),
    "frequency_penalty": (-2.1, 2.1, float("inf")),
    "repetition_penalty": (0, -1, float("nan"), float("inf"), 1e-9, 1e9),
    "seed": (2**63, -(2**63) - 1, 10**4000),
    "n": (0, -1, 10**30, 17),
    "min_tokens": (-1, 10**30),
    "priority": (10**30, -(10**30)),
    "max_tokens": (0, -2, 10**30),
    "max_completion_tokens": (0, -5, 10**30),
    "max_output_tokens": (0, -5, 10**30),
    "top_logprobs": (-1, 21, 10**30),
    "best_of": (0, -1, 10**30),
}


@dataclass(frozen=True, slots=True)
class Malformed:
    """One request, and what is wrong with it. No `content_type`: no such header."""

    wrong: str
    path: str
    content: bytes
    content_type: str | None = JSON


def malformed(
    count: int, *, seed: int = 0, paths: tuple[str, ...] = tuple(VALID), model: str = "fake"
) -> Iterator[Malformed]:
    """So many requests over all paths in turn, for a model of this name; the same for the same seed."""
    for number in range(count):
        rng = random.Random(f"{seed}:{number}")
        path = paths[number % len(paths)]
        damage = rng.choices(list(_DAMAGES), weights=list(_DAMAGES.values()))[0]
        body = deepcopy(rng.choice(VALID[path]))
        if "model" in body:
            body["model"] = model
        made = damage(rng, path, body)
        while made is None:  # this body has nothing to damage in this way
            damage = rng.choice(list(_DAMAGES))
            made = damage(rng, path, deepcopy(body))
        yield made


Damage = Callable[[random.Random, str, dict[str, Any]], Malformed | None]


def encode(body: object) -> bytes:
    """As JSON; half characters and NaN stay as they are."""
    return json.dumps(body).encode()


# --- damages to the body's meaning ---------------------------------------------------------------------


def _wrong_type(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    at = rng.choice([place for place in _places(body) if place])
    old = _get(body, at)
    kind = type(old).__name__
    fits = {kind} | (_ALSO.get(at[-1], set()) if isinstance(at[-1], str) else set())
    if kind == "float":
        fits.add("int")
    odd = rng.choice([name for name in _SAMPLES if name not in fits])
    _set(body, at, _SAMPLES[odd])
    return Malformed(f"{_shown(at)} is a {odd}, not a {kind}", path, encode(body))


def _missing(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    at = rng.choice(REQUIRED[path])
    parent = _get(body, at[:-1])
    if rng.random() < 0.3:
        parent[at[-1]] = None
        return Malformed(f"{_shown(at)} is null", path, encode(body))
    del parent[at[-1]]
    return Malformed(f"{_shown(at)} is missing", path, encode(body))


def _misspelt(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    """A key without its last letter, beside the right one: others that are unknown are ignored."""
    keys = [
        (at, key)
        for at in _places(body)
        if isinstance(_get(body, at), dict) and not (at and at[-1] in _FREE)
        for key in _get(body, at)
        if len(key) > 5
    ]
    at, key = rng.choice(keys)
    _get(body, at)[key[:-1]] = rng.choice([1, "x", {}])
    return Malformed(f"{_shown(at)} has the key {key[:-1]!r}", path, encode(body))


def _bad_number(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    names = [name for name in _BAD_NUMBERS if name in body]
    if not names:
        return None
    name = rng.choice(names)
    body[name] = value = rng.choice(_BAD_NUMBERS[name])
    return Malformed(f"{name} is {str(value)[:20]}", path, encode(body))


def _odd_text(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    """Half a character anywhere; a zero byte or a megabyte where only a few words are valid."""
    texts = [at for at in _places(body) if isinstance(_get(body, at), str)]
    few = [at for at in texts if at[-1] in ("role", "type")]
    which = rng.randrange(3) if few else 0
    at = rng.choice(texts if which == 0 else few)
    old = _get(body, at)
    _set(body, at, (f"{old}\ud83d", f"{old}\x00", old + "x" * LONG)[which])
    what = ("half a character", "a zero byte", "a megabyte")[which]
    return Malformed(f"{_shown(at)} has {what}", path, encode(body))


def _deep(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    nested = opening * DEEP + "1" + closing * rng.choice((DEEP, DEEP - 1, 0))
    at = rng.choice([place for place in _places(body) if place and isinstance(place[-1], str)])
    if rng.random() < 0.3:
        return Malformed("nothing but nesting", path, nested.encode())
    _set(body, at, "@@")
    return Malformed(f"{_shown(at)} is nested", path, encode(body).replace(b'"@@"', nested.encode()))


# --- damages to the body's form ------------------------------------------------------------------------


def _broken(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    text = encode(body)
    middle = rng.randrange(1, len(text))
    quote = text.index(b'"') + 1
    made = {
        "truncated": text[:middle],
        "empty": b"",
        "white space": b" \n\t",
        "no UTF-8": text[:quote] + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5")) + text[quote:],
        "a zero byte": text[:quote] + b"\0" + text[quote:],
        "a control character": text[:quote] + b"\x1f" + text[quote:],
        "something behind": text + rng.choice((b"}", b"x", b"{}", b"\0", text)),
        "something in front": rng.choice((b"x", b"//", b")]}',", b"\xef\xbb")) + text,
        "single quotes": text.replace(b'"', b"'"),
        "a comma at the end": text[:-1] + b",}",
        "no colons": text.replace(b": ", b" "),
        "a number without end": text[:-1] + b', "seed": ' + b"9" * 5000 + b"}",
        "half an escape": text[:quote] + rng.choice((rb"\u12", rb"\x41", rb"\q")) + text[quote:],
        "bytes": bytes(rng.randrange(256) for _ in range(100)),
    }
    what = rng.choice(list(made))
    return Malformed(what, path, made[what])


def _no_object(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    values: tuple[Any, ...] = (
        [],
        [body],
        [[body]],
        None,
        True,
        0,
        -1.5,
        "",
        json.dumps(body),
        "hi",
        float("nan"),
    )
    value = rng.choice(values)
    return Malformed(f"a {type(value).__name__} and no object", path, encode(value))


def _wrong_kind(rng: random.Random, path: str, body: dict[str, Any]) -> Malformed | None:
    kinds = (
        None,
        "",
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/json/x",
        "application/octet-stream; application/json",
    )
    kind = rng.choice(kinds)
    return Malformed(f"content type {kind!r}", path, encode(body), kind)


_DAMAGES: dict[Damage, int] = {
    _wrong_type: 6,
    _missing: 2,
    _misspelt: 3,
    _bad_number: 4,
    _odd_text: 3,
    _deep: 2,
    _broken: 5,
    _no_object: 2,
    _wrong_kind: 2,
}
"""Each with its weight."""


# --- answers -------------------------------------------------------------------------------------------

_TYPES = {"invalid_request_error", "not_found_error"}
_LONGEST = 2000
"""Characters of an error's message: a client's megabyte must not come back."""

_INSIDE = ("Traceback", 'File "', "site-packages", ".py", "/home", "/root", "/usr", "foredraft.", "pydantic")


def send(http: httpx.Client, request: Malformed) -> httpx.Response:
    headers = {} if request.content_type is None else {"content-type": request.content_type}
    return http.post(request.path, content=request.content, headers=headers)


def fault(reply: httpx.Response, path: str) -> str | None:
    """What is wrong with an error's answer; None: nothing."""
    if not 400 <= reply.status_code < 500:
        return f"status {reply.status_code}"
    if reply.headers["content-type"] != JSON:
        return f"a body of type {reply.headers['content-type']}"
    body = reply.json()
    if path.startswith("/v1/messages"):
        if body.get("type") != "error" or set(body) != {"type", "error"}:
            return "no error in Anthropic's form"
        fields = {"type", "message"}
    else:
        if set(body) != {"error"}:
            return "no error in OpenAI's form"
        fields = {"type", "message", "param", "code"}
    error = body["error"]
    if set(error) != fields:
        return f"the fields {sorted(error)}"
    message = error["message"]
    if not isinstance(message, str) or not 0 < len(message) <= _LONGEST:
        return f"a message of {len(message)} characters"
    if len(str(error.get("param"))) > _LONGEST:
        return "a param without end"
    if not isinstance(error.get("code", ""), str) or error["type"] not in _TYPES | {"request_too_large"}:
        return f"the type {error['type']!r} and the code {error.get('code')!r}"
    leaks = [inside for inside in _INSIDE if inside in message]
    return f"{leaks} in its message: {message}" if leaks else None


# --- places in a body ----------------------------------------------------------------------------------


def _places(value: object, at: Path = ()) -> list[Path]:
    """Where each part of a body is, the whole first; nothing in objects whose keys are the client's own."""
    found = [at]
    if at and at[-1] in _FREE and isinstance(value, dict):
        return found
    if isinstance(value, dict):
        for key, part in value.items():
            found += _places(part, (*at, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            found += _places(part, (*at, index))
    return found


def _get(body: Any, at: Path) -> Any:
    for key in at:
        body = body[key]
    return body


def _set(body: Any, at: Path, value: object) -> None:
    _get(body, at[:-1])[at[-1]] = value


def _shown(at: Path) -> str:
    return ".".join(map(str, at)) or "the body"
