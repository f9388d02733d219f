from __future__ import annotations

import logging
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.drafters.ngram_cache import build_static, create
from foredraft.errors import CapacityError, SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.testing import drafter_context
from foredraft.types import Draft, DraftLimit, Outcome

CONTEXT = drafter_context()
VOCAB_HASH = CONTEXT.target.vocab_hash


def started(drafter: Drafter, tokens: list[int], *, number: int = 1, scope: str = "") -> RequestView:
    request = RequestView(id=number, tokens=tokens, prompt_length=len(tokens), scope=scope)
    drafter.start(request)
    return request


def draft(drafter: Drafter, request: RequestView, limit: int = 64) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit))])[0]


def first(drafter: Drafter, tokens: list[int]) -> Draft | None:
    """The one-token draft for a history."""
    request = started(drafter, tokens)
    found = draft(drafter, request, limit=1)
    drafter.stop(request)
    return found


def generate(
    drafter: Drafter, prompt: list[int], output: list[int], *, number: int = 1, scope: str = ""
) -> None:
    """A whole request, one token a round."""
    request = started(drafter, list(prompt), number=number, scope=scope)
    for token in output:
        request.tokens.append(token)
        drafter.observe(request, Outcome(len(request.tokens) - 1, (token,)))
    drafter.stop(request)


def only(n: int, **options: str) -> Drafter:
    """A drafter with n-grams of one length."""
    return create(CONTEXT, {"n-min": str(n), "n-max": str(n), **options})


# --- context level -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "drafted"),
    [
        ([1, 5, 0, 1], None),  # n = 1 needs two samples
        ([1, 5, 1, 5, 0, 1], 5),
        ([1, 5, 1, 5, 1, 6, 1], 5),  # 2 of 3 are more than 66 %
        ([1, 5, 1, 6, 1], None),
    ],
)
def test_thresholds_of_one_token(tokens: list[int], drafted: int | None) -> None:
    found = first(only(1), tokens)
    assert (found.tokens[0] if found else None) == drafted


@pytest.mark.parametrize(
    ("n", "values", "drafted"),
    [(2, [5], None), (2, [5, 5], 5), (2, [5, 6], 6), (2, [5, 6, 7], None), (3, [5], 5), (4, [5], 5)],
)
def test_thresholds_of_longer_ngrams(n: int, values: list[int], drafted: int | None) -> None:
    # Each value after the key; of values equally frequent the latest counts.
    key = [1, 2, 3, 4][:n]
    tokens = [token for value in values for token in (*key, value)] + key
    found = first(only(n), tokens)
    assert (found.tokens[0] if found else None) == drafted


def test_the_longest_sure_ngram_decides() -> None:
    tokens = [9, 2, 5, 8, 2, 5, 7, 2, 5, 1, 2, 6, 0, 1, 2]
    found = first(create(CONTEXT, {}), tokens)
    assert found is not None
    assert found.tokens == (5,)  # 1 2 was followed by 6, but once is too few for two tokens
    assert dict(found.features) == {"match_length": 1, "count": 4}
    assert found.confidence == (0.75,)
    longer = first(create(CONTEXT, {}), [9, 2, 5, 8, 2, 5, 3, 1, 2, 6, 0, 3, 1, 2])
    assert longer is not None
    assert longer.tokens == (6,)
    assert longer.features["match_length"] == 3


def test_a_loop_is_drafted_to_the_limit() -> None:
    drafter = create(CONTEXT, {})
    request = started(drafter, [1, 2, 3, 4, 5] * 3)
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == (1, 2, 3, 4, 5, 1, 2, 3)
    assert found.confidence == (1.0,) * 8
    capped = draft(drafter, request, limit=3)
    assert capped is not None
    assert capped.tokens == (1, 2, 3)


# --- static level --------------------------------------------------------------------------------------


def test_static_level_drafts_alone_and_weighs_the_others(tmp_path: Path) -> None:
    path = tmp_path / "static.bin"
    build_static([[1, 2, 5], [1, 2, 5], [3, 4, 6]], path, VOCAB_HASH)
    drafter = create(CONTEXT, {"static": str(path)})
    alone = first(drafter, [1, 2])
    assert alone is not None
    assert alone.tokens == (5,)
    assert dict(alone.features) == {"match_length": 2, "count": 2}
    assert first(drafter, [3, 4]) is None  # one sample is too few
    tokens = [1, 2, 5, 0, 1, 2, 7, 9, 1, 2]
    weighed, unweighed = first(drafter, tokens), first(create(CONTEXT, {}), tokens)
    assert weighed is not None
    assert unweighed is not None
    assert weighed.tokens == (5,)
    assert unweighed.tokens == (7,)


def test_a_static_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    foreign, other = tmp_path / "notes.txt", tmp_path / "other.bin"
    foreign.write_text("my notes")
    build_static([[1, 2, 3]], other, "another vocabulary")
    for path in (foreign, other, tmp_path / "missing.bin", tmp_path):
        with pytest.raises(SpeculationStringError, match="cannot be used") as caught:
            create(CONTEXT, {"static": str(path)})
        assert caught.value.hint


# --- dynamic level -------------------------------------------------------------------------------------

OUTPUT = [10, 11, 12, 13, 14]


def test_outputs_of_finished_requests_are_learned_prompts_are_not() -> None:
    drafter = create(CONTEXT, {})
    for _ in range(2):
        generate(drafter, [20, 21, 22, 23, 24], OUTPUT)
    found = first(drafter, [10, 11, 12])
    assert found is not None
    assert found.tokens == (13,)
    assert first(drafter, [10, 11]) is None  # strict: three samples for two tokens
    assert first(drafter, [21, 22, 23]) is None
    joint = first(drafter, [22, 23, 24])  # the output's first token, after the prompt's last ones
    assert joint is not None
    assert joint.tokens == (10,)


def test_a_running_request_is_not_learned_from_yet() -> None:
    drafter = create(CONTEXT, {})
    request = started(drafter, [0], number=7)
    for _ in range(3):
        for token in OUTPUT:
            request.tokens.append(token)
            drafter.observe(request, Outcome(len(request.tokens) - 1, (token,)))
    assert first(drafter, OUTPUT[:3]) is None
    drafter.stop(request)
    assert first(drafter, OUTPUT[:3]) is not None


def test_earlier_turns_of_a_conversation_are_learned() -> None:
    drafter = create(CONTEXT, {})
    request = started(drafter, [1, 2])
    for _ in range(2):  # two turns: the output, then the next user message
        kept = len(request.tokens)
        request.tokens.extend(OUTPUT)
        drafter.observe(request, Outcome(kept, tuple(OUTPUT)))
        user = (30, 31, 32, 33)
        request.tokens.extend(user)
        request.prompt_length = len(request.tokens)
        drafter.observe(request, Outcome(kept + len(OUTPUT), user))
    drafter.stop(request)
    assert first(drafter, [11, 12, 13]) is not None
    assert first(drafter, [31, 32, 33]) is None


def test_outputs_before_removed_text_are_learned() -> None:
    drafter = create(CONTEXT, {})
    for _ in range(2):
        request = started(drafter, [1, 2])
        request.tokens.extend(OUTPUT)
        drafter.observe(request, Outcome(2, tuple(OUTPUT)))
        request.tokens[6:] = [40, 41, 42]  # the last output token goes, an edit comes
        drafter.observe(request, Outcome(6, (40, 41, 42)))
        drafter.stop(request)
    assert first(drafter, [10, 11, 12]) is not None
    assert first(drafter, [12, 13, 40]) is None


def test_scopes_do_not_share_what_was_learned() -> None:
    drafter = create(CONTEXT, {})
    for _ in range(3):
        generate(drafter, [0], OUTPUT, scope="alice")
    assert draft(drafter, started(drafter, OUTPUT[:3], number=2, scope="bob")) is None
    assert draft(drafter, started(drafter, OUTPUT[:3], number=3, scope="alice")) is not None


def test_the_dynamic_file_is_saved_on_close_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    drafter = create(CONTEXT, {"dynamic": str(path)})
    for _ in range(2):
        generate(drafter, [0], OUTPUT, scope="alice")
    drafter.close()
    drafter.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = create(CONTEXT, {"dynamic": str(path)})
    found = draft(again, started(again, OUTPUT[:3], scope="alice"))
    assert found is not None
    assert found.tokens == (13, 14)
    assert draft(again, started(again, OUTPUT[:3], number=2, scope="bob")) is None


def test_a_store_is_the_default_place_and_without_one_nothing_is_written(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {})
    drafter.close()
    assert list(tmp_path.iterdir()) == []  # nothing learned, nothing saved
    drafter = create(drafter_context(store=tmp_path), {})
    generate(drafter, [0], OUTPUT)
    drafter.close()
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("ngram-cache-")


def test_the_dynamic_file_is_read_when_a_request_starts(tmp_path: Path) -> None:
    """A drafter's successor may be created before it is closed, and would lose what it saves then."""
    path = tmp_path / "dynamic.bin"
    old = create(CONTEXT, {"dynamic": str(path)})
    for _ in range(2):
        generate(old, [0], OUTPUT)
    new = create(CONTEXT, {"dynamic": str(path)})
    old.close()
    generate(new, [0], [50, 51, 52, 53])
    assert first(new, OUTPUT[:3]) is not None
    new.close()
    assert first(create(CONTEXT, {"dynamic": str(path)}), OUTPUT[:3]) is not None


@pytest.mark.parametrize("damaged", [True, False])
def test_an_unusable_dynamic_file_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    path = tmp_path / "dynamic.bin"
    if damaged:
        drafter = create(CONTEXT, {"dynamic": str(path)})
        generate(drafter, [0], OUTPUT)
        drafter.close()
        content = path.read_bytes()[:-1] + b"\xff"
    else:
        content = b"somebody's notes"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        drafter = create(CONTEXT, {"dynamic": str(path)})
        for _ in range(2):
            generate(drafter, [0], OUTPUT)
    assert caplog.text.count(str(path)) == 1
    assert first(drafter, OUTPUT[:3]) is not None  # works without
    drafter.close()
    # A damaged file of ours is replaced; what is not ours is left alone.
    assert (path.read_bytes() == content) is not damaged


def test_a_save_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    drafter = create(CONTEXT, {"dynamic": str(folder / "dynamic.bin")})
    generate(drafter, [0], OUTPUT)
    folder.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        drafter.close()
    assert "cannot save" in caplog.text


# --- options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"n-min": "0"}, {"n-max": "5"}, {"n-min": "3", "n-max": "2"}, {"max": "0"}, {"m": "3"}]
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(SpeculationStringError):
        create(CONTEXT, options)


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    context: DrafterContext = replace(CONTEXT, target=replace(CONTEXT.target, vocab_size=2**20 + 1))
    with pytest.raises(CapacityError):
        create(context, {})
