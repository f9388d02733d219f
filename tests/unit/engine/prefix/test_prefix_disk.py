"""Conversations that had to make room come back from the disk, if that pays, with the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_factory
from foredraft import Engine, SamplingParams
from foredraft.backends.rewind import BEFORE_THE_END, RewindingModel
from foredraft.engine.prefix import file_format
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.prefix.disk import MIN_TOKENS, PrefixCosts, PrefixDisk, open_disk
from foredraft.errors import BackendError
from foredraft.protocols import Model
from foredraft.sequences import common_prefix
from foredraft.testing import FakeModel
from foredraft.types import Completion, Rollback, Rows
from recurrent_double import FakeRecurrentModel

ALICE = [1, *range(10, 110)]
BOB = [2, *range(10, 110)]
SHORT = [3, 4, 5]
ROOM = 10**8


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """One process: a model, its KV cache, and the disk that it shares with those before it."""

    def __init__(
        self, folder: Path, sequences: int = 1, *, spare: int | None = None, **capabilities: object
    ) -> None:
        self.clock = Clock()
        self.model = FakeModel(sequences=sequences)
        self.used: Model = self.model
        if spare is not None:  # it has a recurrent state, and can take back so many rows
            recurrent = FakeRecurrentModel(bound=spare, sequences=sequences)
            self.model, self.used = recurrent, RewindingModel(recurrent)
        self.model.with_capabilities(**capabilities)
        self.cache = PrefixCache(self.used)
        self.disk = open_disk(self.used, folder, ROOM, clock=self.clock)
        self.cache.disk = self.disk

    def answer(self, prompt: Sequence[int], scope: str = "", said: Sequence[int] = ()) -> int:
        """Compute a prompt from start to finish, and what is said then; how much of it was cached."""
        place = self.cache.acquire(prompt, scope, self.cache.fetch(prompt, scope))
        assert place is not None
        seq, shared = place
        assert self.model.tokens(seq) == list(prompt[:shared]), "what is reused is what is there"
        self.used.forward([Rows(seq, shared, prompt[shared:], 1)])
        for place_of, token in enumerate(said, len(prompt)):
            self.used.forward([Rows(seq, place_of, [token], 1)])
        self.cache.release(seq, [*prompt, *said])
        if self.disk is not None:
            self.disk.flush()
        return shared


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def begin(sequences: int = 1, **capabilities: Any) -> Machine:
        for before in made:
            before.cache.close()
        made.append(Machine(tmp_path, sequences, **capabilities))
        return made[-1]

    yield begin
    for machine in made:
        machine.cache.close()


Start = Callable[..., Machine]


def bins(folder: Path) -> list[Path]:
    return file_format.files(file_format.prefixes_dir(folder))


# --- making room and coming back -----------------------------------------------------------------------


def test_a_conversation_comes_back_after_another(start: Start) -> None:
    machine = start()
    assert machine.answer(ALICE) == 0
    assert machine.answer(BOB) == 0
    assert machine.answer([*ALICE, 7, 8]) == len(ALICE)
    assert machine.answer([*BOB, 7, 8]) == len(BOB)


def test_and_after_a_restart(start: Start) -> None:
    start(2).answer(ALICE)
    again = start(2)
    assert again.answer([*ALICE, 7]) == len(ALICE)
    assert again.answer(ALICE[:90]) == 89, "and what shares only its beginning"


def test_evicted_ones_come_back(start: Start) -> None:
    machine = start()
    machine.answer(ALICE)
    assert machine.cache.evict()
    assert machine.model.length(0) == 0
    assert machine.disk is not None
    machine.disk.flush()
    assert machine.answer([*ALICE, 7]) == len(ALICE)


def test_only_for_the_same_scope(start: Start) -> None:
    machine = start()
    machine.answer(ALICE, "alice")
    assert machine.answer(ALICE, "bob") == 0
    assert machine.answer([*ALICE, 7], "alice") == len(ALICE)
    assert start().answer([*ALICE, 7]) == 0


def test_what_failed_is_not_kept(start: Start, tmp_path: Path) -> None:
    machine = start()
    place = machine.cache.acquire(ALICE)
    assert place == (0, 0)
    machine.model.forward([Rows(0, 0, ALICE, 1)])
    machine.cache.drop(0)
    machine.cache.close()
    assert not bins(tmp_path)


def test_what_runs_is_not_kept(start: Start, tmp_path: Path) -> None:
    machine = start()
    machine.answer(ALICE)
    assert machine.cache.acquire(BOB) is not None
    assert machine.disk is not None
    machine.disk.flush()
    before = bins(tmp_path)
    machine.cache.close()
    assert bins(tmp_path) == before


def test_short_ones_are_computed_again(start: Start, tmp_path: Path) -> None:
    machine = start()
    machine.answer(ALICE[: MIN_TOKENS - 1])
    machine.answer(BOB[: MIN_TOKENS - 1])
    machine.cache.close()
    assert not bins(tmp_path)


def test_what_goes_on_is_not_written_at_every_turn(start: Start, tmp_path: Path) -> None:
    machine = start()
    for turn in range(1, 4):
        machine.answer(ALICE + [9] * turn)
    assert not bins(tmp_path), "it never had to make room"
    machine.answer(BOB)
    (first,) = bins(tmp_path)
    machine.answer(ALICE + [9] * 10)
    machine.answer(BOB)
    assert first in bins(tmp_path), "so little was new that it was not written again"


def test_an_edit_far_back_keeps_what_it_removes(start: Start, tmp_path: Path) -> None:
    machine = start()
    machine.answer(ALICE + [9] * 100)
    assert machine.answer([*ALICE, 7]) == len(ALICE)
    assert len(bins(tmp_path)) == 1
    assert machine.answer(ALICE + [9] * 101) == len(ALICE) + 100


def test_what_the_kv_cache_has_is_not_read(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = start(2)
    machine.answer(ALICE)
    machine.answer(BOB)
    again = start(2)
    again.answer(ALICE)
    restored: list[int] = []
    real = again.model.restore

    def restore(seq: int, snapshot: object) -> None:
        restored.append(seq)
        real(seq, snapshot)

    monkeypatch.setattr(again.model, "restore", restore)
    assert again.answer([*ALICE, 7]) == len(ALICE)
    assert not restored
    assert again.answer([*BOB, 7]) == len(BOB)
    assert restored


def test_it_leaves_other_conversations_where_they_are(start: Start) -> None:
    start(1).answer(ALICE)
    machine = start(2)
    machine.answer(BOB)
    assert machine.answer([*ALICE, 7]) == len(ALICE)
    assert machine.model.tokens(0) == BOB


def test_a_model_that_cannot_go_back_gets_whole_prefixes(start: Start) -> None:
    machine = start(rollback=Rollback.SNAPSHOT)
    machine.answer(ALICE, said=[5, 6])
    machine.answer(BOB)
    assert machine.answer([*ALICE, 5, 6, 7]) == len(ALICE) + 2
    machine.answer(BOB)
    assert machine.answer(ALICE[:80]) == 0


LONG = [4, *range(10, 310)]


@pytest.mark.parametrize(
    ("spare", "prompt", "computed"),
    [(3, ALICE, 1), (3, LONG, 1), (0, LONG, BEFORE_THE_END), (0, ALICE, len(ALICE))],
)
def test_a_prompt_that_is_asked_again_is_computed_from_its_end(
    start: Start, spare: int, prompt: Sequence[int], computed: int
) -> None:
    """Of its answer one token at most was wanted, which is never computed with. A state cannot be cut once it
    is on the disk, so it is saved as it was before the token whose logits are wanted again, or a little
    earlier where the model marked the prompt.
    """
    machine = start(spare=spare)
    machine.answer(prompt)
    machine.answer(BOB)
    assert machine.answer(prompt) == len(prompt) - computed
    again = start(spare=spare)
    assert again.answer(prompt) == len(prompt) - computed
    assert again.answer([*prompt, 7]) >= len(prompt) - computed


def test_a_short_prompt_is_saved_whole(start: Start) -> None:
    machine = start(spare=3)
    shortest = ALICE[:MIN_TOKENS]
    machine.answer(shortest)
    machine.answer(BOB)
    assert machine.answer([*shortest, 7]) == MIN_TOKENS


def test_a_conversation_is_not_saved_as_it_was_long_before(start: Start) -> None:
    """Where its first prompt was marked, and the last one was short."""
    machine = start(spare=0)
    machine.answer(LONG, said=[5] * 100)
    asked = [*LONG, *[5] * 100, 6, 7, 8]
    machine.answer(asked)
    machine.answer(BOB)
    assert machine.answer([*asked, 9]) == len(asked)


conversations = st.lists(st.integers(0, 2), min_size=1, max_size=5)
"""Each number stands for 30 tokens, so that two conversations share up to 150."""


@given(
    asked=st.lists(st.tuples(conversations, st.sampled_from(["alice", "bob"])), max_size=14),
    sequences=st.integers(1, 3),
    limits=st.sampled_from([{}, {"rollback": Rollback.SNAPSHOT}, {"window": 40}]),
    restarts=st.sets(st.integers(0, 13)),
)
def test_whatever_is_asked_only_the_scopes_own_text_is_reused(
    asked: list[tuple[list[int], str]], sequences: int, limits: dict[str, Any], restarts: set[int]
) -> None:
    with TemporaryDirectory() as folder:
        machine = Machine(Path(folder), sequences, **limits)
        before: list[tuple[list[int], str]] = []
        for number, (conversation, scope) in enumerate(asked):
            if number in restarts:
                machine.cache.close()
                machine = Machine(Path(folder), sequences, **limits)
            prompt = [30 * part + i for part in conversation for i in range(30)]
            shared = machine.answer(prompt, scope)  # which looks at the cells
            most = (common_prefix(prompt[:-1], other) for other, its in before if its == scope)
            assert shared <= max(most, default=0)
            before.append((prompt, scope))
        machine.cache.close()


def test_without_a_serial_form_nothing_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Machine(tmp_path, snapshot_key="").disk is None
    assert "cannot write its KV cache" in caplog.text


def test_without_room_nothing_is_kept(tmp_path: Path) -> None:
    assert open_disk(FakeModel(), tmp_path, 0) is None
    assert not list(tmp_path.iterdir())


# --- what goes wrong -----------------------------------------------------------------------------------


def test_damaged_cells_are_computed_again(start: Start, tmp_path: Path) -> None:
    start().answer(ALICE)
    machine = start()
    (path,) = bins(tmp_path)
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    assert machine.answer([*ALICE, 7]) == 0
    assert not bins(tmp_path)
    assert machine.answer([*ALICE, 7, 8]) == len(ALICE) + 1


def test_cells_the_backend_refuses_are_computed_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start().answer(ALICE)
    machine = start()

    def refuse(seq: int, snapshot: object) -> None:
        raise BackendError("no")

    monkeypatch.setattr(machine.model, "restore", refuse)
    assert machine.answer([*ALICE, 7]) == 0
    assert "could not be reused: no" in caplog.text
    assert not bins(tmp_path)


def test_cells_of_another_length_are_computed_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start().answer(ALICE)
    machine = start()
    real = machine.model.restore
    monkeypatch.setattr(machine.model, "restore", lambda seq, cells: real(seq, cells[:-8]))
    assert machine.answer([*ALICE, 7]) == 0
    assert f"holds {len(ALICE) - 2} tokens, not {len(ALICE)}" in caplog.text


def test_a_sequence_that_cannot_be_saved_makes_room_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = start()
    machine.answer(ALICE)

    def refuse(seq: int) -> bytearray:
        raise MemoryError("too large")

    monkeypatch.setattr(machine.model, "snapshot", refuse)
    assert machine.answer(BOB) == 0
    assert "could not be saved: too large" in caplog.text


# --- whether it pays -----------------------------------------------------------------------------------


def test_what_was_not_measured_is_tried() -> None:
    costs = PrefixCosts()
    assert costs.pays(MIN_TOKENS, 1000)
    assert not costs.pays(MIN_TOKENS - 1, 1000)
    costs.restored(100, 5.0)
    assert costs.pays(MIN_TOKENS, 1000)


def test_it_is_restored_where_that_is_faster() -> None:
    costs = PrefixCosts()
    costs.computed(100, 1.0)
    costs.restored(100, 0.1)
    assert costs.pays(1000, 1000)
    assert costs.pays(150, 1000)
    assert not costs.pays(100, 1000), "all of it is read, for little"
    costs.computed(100, 0.01)
    assert not costs.pays(1000, 1000), "the device computes faster than the disk reads"
    costs.computed(100, 10.0)
    assert not costs.pays(1000, 1000), "it was busy: that is not the disk's merit"
    costs.computed(MIN_TOKENS - 1, 0.0001)
    costs.computed(0, 0.0)
    for _ in range(3):
        costs.restored(100, 0.001)
    assert costs.pays(1000, 1000), "a single slow read is forgotten"


def test_a_disk_slower_than_the_model_is_left_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start().answer(ALICE)
    machine = start()
    assert isinstance(machine.disk, PrefixDisk)
    real = machine.model.restore

    def slow(seq: int, cells: object) -> None:
        machine.clock.now += 10
        real(seq, cells)

    monkeypatch.setattr(machine.model, "restore", slow)
    machine.disk.costs.computed(100, 1.0)
    assert machine.answer([*ALICE, 7]) == len(ALICE), "tried once"
    machine.answer(BOB)
    assert machine.answer([*ALICE, 7, 8]) == 0


# --- the engine ----------------------------------------------------------------------------------------

ANSWER = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return gguf_factory.tiny_llama(tmp_path / "tiny.gguf")


def load(path: Path, gigabytes: float, **options: int) -> Engine:
    return Engine.load(
        path,
        speculate="off",
        threads=1,
        gpu_layers=0,
        context_length=256,
        cache_dir=path.parent / "cache",
        prefix_cache_gb=gigabytes,
        **options,  # type: ignore[arg-type]
    )


def talk(path: Path, gigabytes: float) -> list[Completion]:
    """Two conversations in turns over two runs, in one sequence."""
    answers: list[Completion] = []
    for _ in range(2):
        with load(path, gigabytes) as engine:
            for _ in range(2):
                for prompt in (ALICE, BOB):
                    before = [token for answer in answers for token in answer.tokens][:60]
                    answers.append(engine.generate([*prompt, *before], ANSWER))
                    disk = engine._scheduler.cache.disk
                    if disk is not None:
                        disk.flush()
    return answers


def test_the_text_is_the_same_and_less_is_computed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A model this small is now and then computed sooner than read: here bringing back always pays.
    monkeypatch.setattr(PrefixCosts, "pays", lambda _costs, gained, _tokens: gained >= MIN_TOKENS)
    plain, kept = talk(tiny, 0), talk(tiny, 0.1)
    assert [answer.tokens for answer in kept] == [answer.tokens for answer in plain]
    assert sum(answer.usage.cached_tokens for answer in plain) == 0
    assert [answer.usage.cached_tokens >= len(ALICE) for answer in kept] == [False] * 2 + [True] * 6


def test_it_is_off_unless_asked_for(tiny: Path) -> None:
    talk(tiny, 0)
    assert not (tiny.parent / "cache" / "prefixes").exists()


def test_another_setting_finds_nothing(tiny: Path) -> None:
    with load(tiny, 0.1) as engine:
        engine.generate(ALICE, ANSWER)
    with load(tiny, 0.1, ubatch=16) as engine:
        assert engine.generate(ALICE, ANSWER).usage.cached_tokens == 0
    with load(tiny, 0.1) as engine:
        assert engine.generate(ALICE, ANSWER).usage.cached_tokens == len(ALICE) - 1


def test_closing_twice_saves_once(tiny: Path) -> None:
    engine = load(tiny, 0.1)
    engine.generate(ALICE, ANSWER)
    engine.close()
    engine.close()
    assert len(bins(tiny.parent / "cache")) == 1


def test_a_sequence_that_was_emptied_meanwhile_is_not_saved(start: Start, tmp_path: Path) -> None:
    """By an interrupt, in a forward of others."""
    machine = start()
    machine.answer(ALICE)
    machine.model.release(0)
    assert machine.answer(BOB) == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    machine.answer(SHORT)
    assert machine.answer(BOB) > 0, "which was there"
