"""A running server and random JSON schemas: does every answer fit, and is it the same without drafts?

`--count` schemas of a seeded generator (nested objects, arrays, enums, const, anyOf, $ref, integers with
ranges, strings with lengths, patterns and formats), asked for by OpenAI's client: every other one streamed,
half of them at temperature 1 with a seed. Each answer must end by itself and fit its schema, as the package
`jsonschema` reads it, and be the text that comes with `"speculate": "off"`. Exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai

from common import progress, run_benchmark
from server_common import check_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def check(client: openai.OpenAI, model: str, number: int, tokens: int) -> tuple[str | None, str | None, int]:
    """(why an answer is not valid, how it differs without drafts, accepted draft tokens) for one schema."""
    from random_schemas import ask, complaint, random_schema

    schema = random_schema(number)
    options: dict[str, Any] = {
        "temperature": number // 2 % 2,
        "seed": number,
        "stream": number % 2 == 1,
        "max_tokens": tokens,
    }
    text, reason, accepted = ask(client, model, schema, **options)
    plain, _, _ = ask(client, model, schema, **options, extra_body={"speculate": "off"})
    different = None if plain == text else f"{text!r} is {plain!r} without drafts"
    return complaint(text, reason, schema), different, accepted


def check_all(
    client: openai.OpenAI, model: str, numbers: Sequence[int], tokens: int, at_once: int
) -> Iterator[tuple[int, tuple[str | None, str | None, int]]]:
    """(number, what `check` found) for every schema, in order."""
    with ThreadPoolExecutor(at_once) as threads:
        found = threads.map(lambda number: check(client, model, number, tokens), numbers)
        yield from zip(numbers, found, strict=True)


def first_model(client: openai.OpenAI) -> str:
    """The first model that the server lists. Ends the script, saying why, if there is none."""
    try:
        models = list(client.models.list())
    except openai.APIError as error:
        raise SystemExit(f"The server does not list its models: {error}") from None
    if not models:
        raise SystemExit("The server lists no model: name one with --model.")
    return models[0].id


def main() -> None:
    """Ask for all; the last line of output is one JSON object."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--url", default="http://127.0.0.1:8080", help="the server, without /v1")
    arguments.add_argument("--model", default=None, help="the first that the server lists if absent")
    arguments.add_argument("--key", default="none", help="an API key, if the server wants one")
    arguments.add_argument("--count", type=int, default=200)
    arguments.add_argument("--first", type=int, default=0, help="number of the first schema")
    arguments.add_argument("--tokens", type=int, default=1000, help="the most of one answer")
    arguments.add_argument("--at-once", type=int, default=1, help="requests at the same time")
    args = arguments.parse_args()
    numbers = range(args.first, args.first + args.count)
    check_server(args.url)
    invalid = different = accepted = 0
    with openai.OpenAI(base_url=f"{args.url}/v1", api_key=args.key, max_retries=0, timeout=600) as client:
        model = args.model or first_model(client)
        for number, found in check_all(client, model, numbers, args.tokens, args.at_once):
            wrong, other, drafted = found
            invalid, different, accepted = invalid + bool(wrong), different + bool(other), accepted + drafted
            for what in filter(None, (wrong, other)):
                print(f"schema {number}: {what}", flush=True)
            progress(number - args.first + 1, args.count, f"schema {number}")
    report = {"schemas": args.count, "valid": args.count - invalid, "different": different}
    print(json.dumps({**report, "accepted_draft_tokens": accepted}))
    sys.exit(1 if invalid or different else 0)


if __name__ == "__main__":
    run_benchmark(main)
