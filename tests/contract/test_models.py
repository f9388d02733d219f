"""What every model promises (protocols.Model and protocols.Tokenizer), whatever computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foredraft.errors import BackendError, OutOfKVError, RequestError
from foredraft.protocols import Model
from foredraft.types import Rollback, Rows
from model_cases import CASES, Workspace, fresh, prefill, same, text_tokens

CONTEXT = 96
SEQUENCES = 4
SPARE = SEQUENCES - 1
"""The sequence in which a test computes from nothing what another one should hold."""

TEXT = text_tokens(24)
OTHER = text_tokens(15, seed=1)


Make = Callable[[int, int], Model]
"""Makes a model with a context length and a number of sequences."""


@pytest.fixture(params=sorted(CASES))
def make(request: pytest.FixtureRequest, workspace: Workspace) -> Iterator[Make]:
    made: list[Model] = []

    def load(context_length: int, sequences: int) -> Model:
        made.append(CASES[request.param](workspace, context_length, sequences))
        return made[-1]

    yield load
    for model in made:
        model.close()


@pytest.fixture
def model(make: Make) -> Model:
    return make(CONTEXT, SEQUENCES)


# --- what it says of itself ----------------------------------------------------------------------------


def test_info_and_capabilities_are_sane(model: Model) -> None:
    info, capabilities = model.info, model.capabilities
    assert info.vocab_size == model.tokenizer.vocab_size > 0
    assert info.context_length == CONTEXT <= info.trained_context
    assert info.name
    assert info.file_hash
    assert info.vocab_hash
    assert info.architecture
    assert info.backend
    assert info.device
    assert capabilities.sequences == SEQUENCES
    assert capabilities.max_rows >= 2
    assert capabilities.max_batch >= 2
    assert capabilities.invariance_note
    assert (capabilities.rollback is Rollback.BOUNDED) == (capabilities.rollback_bound > 0)


def test_every_sequence_is_empty_at_first(model: Model) -> None:
    assert [model.length(seq) for seq in range(SEQUENCES)] == [0] * SEQUENCES


# --- forward -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [0, 1, 3, len(TEXT)])
def test_forward_returns_the_last_rows_asked_for(model: Model, wanted: int) -> None:
    logits = model.forward([Rows(0, 0, TEXT, wanted)])
    assert logits.shape == (wanted, model.info.vocab_size)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert model.length(0) == len(TEXT)
    rows = logits.copy()
    for length, row in zip(range(len(TEXT) - wanted + 1, len(TEXT) + 1), rows, strict=True):
        assert same(model, row, fresh(model, SPARE, TEXT[:length])), f"after {length} tokens"


def test_logits_are_valid_until_the_next_forward(model: Model) -> None:
    logits = model.forward([Rows(0, 0, TEXT, 4), Rows(1, 0, OTHER, 1)])
    before = logits.copy()
    model.truncate(0, 5)
    model.release(1)
    model.fork(0, 2, 3)
    assert np.array_equal(logits, before)


def test_rows_come_in_batch_order_with_prefill_and_decode_together(model: Model) -> None:
    prefill(model, 2, TEXT[:-1])
    prefill(model, 1, OTHER[:4])
    batch = [
        Rows(2, len(TEXT) - 1, TEXT[-1:], 1),  # decodes
        Rows(0, 0, TEXT[:9], 0),  # a chunk of a longer prompt
        Rows(1, 4, OTHER[4:], 3),  # verifies
    ]
    logits = model.forward(batch).copy()
    assert logits.shape == (4, model.info.vocab_size)
    assert [model.length(seq) for seq in range(3)] == [9, len(OTHER), len(TEXT)]
    texts = [TEXT, OTHER[:-2], OTHER[:-1], OTHER]
    for row, tokens in zip(logits, texts, strict=True):
        assert same(model, row, fresh(model, SPARE, tokens))
    assert same(model, prefill(model, 0, TEXT[9:]), fresh(model, SPARE, TEXT)), "the chunk was computed"


@pytest.mark.parametrize("count", [2, 3, 5, 8, 17])
def test_many_rows_give_what_single_rows_give(model: Model, count: int) -> None:
    prefill(model, 0, OTHER)
    tokens = text_tokens(count, seed=count)
    single = [prefill(model, 0, [token]) for token in tokens]
    model.truncate(0, len(OTHER))
    together = model.forward([Rows(0, len(OTHER), tokens, count)]).copy()
    assert same(model, together, np.stack(single))


def test_rows_must_start_where_the_cache_ends(model: Model) -> None:
    prefill(model, 0, TEXT)
    for start in (0, len(TEXT) - 1, len(TEXT) + 1):
        with pytest.raises(BackendError):
            model.forward([Rows(0, start, OTHER, 1)])
        assert model.length(0) == len(TEXT)
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, TEXT + OTHER))


@pytest.mark.parametrize("seq", [-1, SEQUENCES, 1000])
def test_there_are_only_so_many_sequences(model: Model, seq: int) -> None:
    with pytest.raises(BackendError):
        model.forward([Rows(seq, 0, TEXT, 1)])
    assert [model.length(seq) for seq in range(SEQUENCES)] == [0] * SEQUENCES


def test_more_rows_than_fit_one_forward_are_refused(make: Make) -> None:
    model = make(1000, 1)
    tokens = text_tokens(model.capabilities.max_batch + 1)
    with pytest.raises(BackendError):
        model.forward([Rows(0, 0, tokens, 1)])
    assert model.length(0) == 0
    model.forward([Rows(0, 0, tokens[:-1], 1)])
    assert model.length(0) == model.capabilities.max_batch


# --- a full context ------------------------------------------------------------------------------------


def test_a_full_context_is_an_error_that_changes_nothing(model: Model) -> None:
    prefill(model, 0, TEXT)
    full = text_tokens(CONTEXT, seed=5)
    prefill(model, 1, full)
    assert model.length(1) == CONTEXT, "the last cell can be used"
    for batch in (
        [Rows(1, CONTEXT, [TEXT[0]], 1)],
        [Rows(0, len(TEXT), OTHER, 1), Rows(1, CONTEXT, [TEXT[0]], 1)],
    ):
        with pytest.raises(OutOfKVError):
            model.forward(batch)
        assert [model.length(0), model.length(1)] == [len(TEXT), CONTEXT]
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, TEXT + OTHER))
    model.truncate(1, CONTEXT - 1)
    assert same(model, prefill(model, 1, full[-1:]), fresh(model, SPARE, full))


# --- the KV cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, len(TEXT) - 1, len(TEXT)])
def test_truncate_keeps_what_came_before(model: Model, length: int) -> None:
    prefill(model, 0, TEXT)
    model.truncate(0, length)
    assert model.length(0) == length
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, TEXT[:length] + OTHER))


def test_truncate_never_lengthens(model: Model) -> None:
    prefill(model, 0, TEXT)
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT) + 1)
    assert model.length(0) == len(TEXT)


@pytest.mark.parametrize("length", [0, 1, 10, len(TEXT)])
@pytest.mark.parametrize("occupied", [False, True])
def test_fork_copies_a_prefix_and_leaves_the_source(model: Model, length: int, occupied: bool) -> None:
    prefill(model, 0, TEXT)
    if occupied:
        prefill(model, 1, OTHER)
    model.fork(0, 1, length)
    assert (model.length(0), model.length(1)) == (len(TEXT), length)
    assert same(model, prefill(model, 1, OTHER), fresh(model, SPARE, TEXT[:length] + OTHER))
    assert same(model, prefill(model, 0, OTHER[:3]), fresh(model, SPARE, TEXT + OTHER[:3]))


def test_fork_to_itself_truncates(model: Model) -> None:
    prefill(model, 0, TEXT)
    model.fork(0, 0, 7)
    assert model.length(0) == 7
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, TEXT[:7] + OTHER))


def test_fork_copies_no_more_than_there_is(model: Model) -> None:
    prefill(model, 0, TEXT)
    prefill(model, 1, OTHER)
    with pytest.raises(BackendError):
        model.fork(0, 1, len(TEXT) + 1)
    assert (model.length(0), model.length(1)) == (len(TEXT), len(OTHER))


def test_a_snapshot_is_restored_whatever_happened_since(model: Model) -> None:
    prefill(model, 0, TEXT)
    snapshot = model.snapshot(0)
    for spoil in (
        lambda: prefill(model, 0, OTHER),
        lambda: model.truncate(0, 3),
        lambda: model.release(0),
        lambda: model.fork(1, 0, 0),
        lambda: None,
    ):
        spoil()
        model.restore(0, snapshot)
        assert model.length(0) == len(TEXT)
        assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, TEXT + OTHER))


def test_an_empty_sequence_can_be_saved_and_restored(model: Model) -> None:
    snapshot = model.snapshot(0)
    prefill(model, 0, TEXT)
    model.restore(0, snapshot)
    assert model.length(0) == 0
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, OTHER))


def test_release_drops_one_sequence_only(model: Model) -> None:
    prefill(model, 0, TEXT)
    prefill(model, 1, OTHER)
    model.release(0)
    model.release(2)
    assert [model.length(seq) for seq in range(3)] == [0, len(OTHER), 0]
    assert same(model, prefill(model, 1, TEXT), fresh(model, SPARE, OTHER + TEXT))
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, OTHER))


def test_keep_path_of_a_chain_is_a_truncation(model: Model) -> None:
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), OTHER, len(OTHER))])
    model.keep_path(0, len(TEXT), range(3))
    assert model.length(0) == len(TEXT) + 3
    assert same(model, prefill(model, 0, TEXT[:2]), fresh(model, SPARE, TEXT + OTHER[:3] + TEXT[:2]))


def test_trees_are_computed_or_refused_as_the_capabilities_say(model: Model) -> None:
    prefill(model, 0, TEXT)
    a, b, c, d, e = text_tokens(5, seed=9)
    tree = Rows(0, len(TEXT), (a, b, c, d, e), 5, parents=(-1, 0, 0, 1, 2))
    if not model.capabilities.trees:
        with pytest.raises(BackendError):
            model.forward([tree])
        assert model.length(0) == len(TEXT)
        return
    logits = model.forward([tree]).copy()
    for row, path in zip(logits, [[a], [a, b], [a, c], [a, b, d], [a, c, e]], strict=True):
        assert same(model, row, fresh(model, SPARE, TEXT + path))
    model.keep_path(0, len(TEXT), (0, 2, 4))
    assert model.length(0) == len(TEXT) + 3
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*TEXT, a, c, e, *OTHER]))


def test_close_may_be_called_twice(model: Model) -> None:
    prefill(model, 0, TEXT)
    model.close()
    model.close()


# --- the tokenizer -------------------------------------------------------------------------------------


def test_text_survives_the_tokenizer(model: Model) -> None:
    tokenizer = model.tokenizer

    @given(st.text(st.characters(codec="utf-8"), max_size=40))
    @settings(suppress_health_check=list(HealthCheck))
    def check(text: str) -> None:
        tokens = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == text
        assert all(0 <= token < tokenizer.vocab_size for token in tokens)
        assert tokenizer.end_tokens.isdisjoint(tokens), "plain text never ends a generation"

    check()


def test_no_text_is_no_tokens(model: Model) -> None:
    assert model.tokenizer.encode("") == []


def test_end_tokens_are_tokens_without_text(model: Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer.end_tokens
    assert all(0 <= token < tokenizer.vocab_size for token in tokenizer.end_tokens)
    assert {tokenizer.token_bytes(token) for token in tokenizer.end_tokens} == {b""}


def test_token_bytes_are_defined_for_the_whole_vocabulary(model: Model) -> None:
    tokenizer = model.tokenizer
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    assert {bytes([byte]) for byte in range(256)} <= set(pieces)


def test_the_chat_template_holds_every_message_in_order(model: Model) -> None:
    render: Callable[..., str] = model.tokenizer.apply_chat_template
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why <b>?"}]
    asked = render(messages)
    assert -1 < asked.find("Be brief.") < asked.find("Why <b>?")
    told = render(messages, add_generation_prompt=False)
    assert asked.startswith(told)
    assert len(asked) > len(told)


def test_a_conversation_needs_a_message(model: Model) -> None:
    with pytest.raises(RequestError):
        model.tokenizer.apply_chat_template([])
