"""Constraints: what a guide allows, forces and keeps of drafts; a tokenizer as llguidance sees it; errors."""

from __future__ import annotations

import gc
import json
import random
import re
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from foredraft.errors import BackendError, MissingDependencyError, RequestError
from foredraft.installation import add_extra
from foredraft.protocols import RequestView
from foredraft.sampling import constraint as module
from foredraft.sampling import trial
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.grammar import MAX_SOURCE, check_source
from foredraft.sampling.guide import Guide
from foredraft.sampling.noise import MATCH, make_key
from foredraft.sampling.sampler import RequestSampler, choose_token
from foredraft.sampling.thought import answer_guide
from foredraft.sampling.trial import Form
from foredraft.templates.control_texts import NO_CONTROL_TEXTS, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint, Draft, Logits, SamplingParams
from gguf_factory import token_texts

END = 256
SIZE = 258
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["international", "internal", "domestic"]},
        "age": {"type": "integer", "minimum": 3, "maximum": 300},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["first_name", "kind", "age", "flags"],
    "additionalProperties": False,
}
SCHEMA = Constraint("json_schema", json.dumps(PERSON))
CASES = {
    "schema": SCHEMA,
    "object": Constraint("json_object"),
    "regex": Constraint("regex", "(Hello|Help me), (world|word){2,3}!?[0-9]{2}"),
    "lark": Constraint("grammar", 'start: "the " noun (" and the " noun)*\nnoun: "dog" | "dogfish" | "cat"'),
    "gbnf": Constraint("grammar", 'root ::= "yes, " [a-c]+ "." | "no"'),
}


class Words:
    """A tokenizer of bytes and longer tokens, as merges make them; `space` puts one before every text."""

    chat_template: str | None = None
    template_traits = TemplateTraits()
    control_texts = NO_CONTROL_TEXTS
    infill_tokens: tuple[int, int, int] | None = None

    def __init__(self, *, space: bool = False) -> None:
        self._texts = token_texts(384)
        self.vocab_size = len(self._texts)
        self.end_tokens = frozenset({0, 2})
        self._space = space
        self.asked = 0

    def token_bytes(self, token: int) -> bytes:
        self.asked += 1
        return b"" if token < 3 or self._texts[token].startswith(b"<|") else self._texts[token]

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        raw = (" " if self._space else "").encode() + text.encode()
        tokens: list[int] = []
        ids = {self.token_bytes(token): token for token in reversed(range(3, self.vocab_size))}
        while raw:
            width = next(width for width in range(min(12, len(raw)), 0, -1) if raw[:width] in ids)
            tokens.append(ids[raw[:width]])
            raw = raw[width:]
        return tokens

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:
        raise NotImplementedError

    def apply_chat_template(
        self, messages: Sequence[object], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        raise NotImplementedError


WORDS = Words()


def text_of(tokens: Sequence[int], tokenizer: Words = WORDS) -> str:
    return b"".join(tokenizer.token_bytes(token) for token in tokens).decode("utf-8", "replace")


def guide(constraint: Constraint, *, ignore_eos: bool = False) -> Guide:
    return compile_constraint(constraint, WORDS, ignore_eos=ignore_eos)


def allowed(follower: Guide, extra: Sequence[int] = (), size: int = 384) -> list[int]:
    return [int(token) for token in np.flatnonzero(follower.mask(np.zeros(size, np.float32), extra) == 0)]


def walk(constraint: Constraint, seed: int, most: int = 160) -> tuple[Guide, list[int]]:
    """A random text of the constraint, in tokens, up to its end."""
    chance = random.Random(seed)
    follower = guide(constraint)
    tokens: list[int] = []
    while not follower.complete and len(tokens) < most:
        choices = allowed(follower)
        closing = [token for token in choices if token < 3 or b'"' in WORDS.token_bytes(token)]
        token = chance.choice(closing if closing and chance.random() < 0.5 else choices)
        follower.advance([token])
        tokens.append(token)
    return follower, tokens


# --- what is allowed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_a_walk_along_the_mask_ends_in_a_text_of_the_constraint(name: str, seed: int) -> None:
    follower, tokens = walk(CASES[name], seed)
    if not follower.complete:
        assert name in ("object", "lark", "gbnf"), "only these have no longest text"
        return
    text = text_of(tokens)
    if name == "schema":
        value = json.loads(text)
        assert set(value) == set(PERSON["required"])
        assert 3 <= value["age"] <= 300
    elif name == "object":
        assert isinstance(json.loads(text), dict)
    else:
        pattern = {
            "regex": CASES["regex"].source,
            "lark": "the (dog|dogfish|cat)( and the (dog|dogfish|cat))*",
            "gbnf": r"yes, [a-c]+\.|no",
        }
        assert re.fullmatch(pattern[name], text)


@pytest.mark.parametrize("name", CASES)
def test_what_is_allowed_does_not_depend_on_what_was_tried_or_looked_at(name: str) -> None:
    chance = random.Random(7)
    for seed in range(2):
        _, tokens = walk(CASES[name], seed, most=40)
        busy = guide(CASES[name])
        for at, token in enumerate(tokens):
            for _ in range(3):
                junk = tuple(chance.choices([*tokens, *range(384)], k=5))
                busy.prune(Draft(junk, "junk"))
                busy.prune(Draft(junk, "junk", parents=(-1, 0, -1, 2, 1)))
                busy.mask(np.zeros(384, np.float32), junk[:2])
            busy.prune(Draft(tuple(tokens[at : at + 9]), "right"))
            busy.forced()
            fresh = guide(CASES[name])
            fresh.advance(tokens[:at])
            assert allowed(busy) == allowed(fresh)
            assert allowed(guide(CASES[name]), tokens[:at]) == allowed(fresh)
            busy.advance([token])


@pytest.mark.parametrize("name", CASES)
def test_forced_and_allows_say_what_the_mask_says(name: str) -> None:
    forced_tokens = 0
    for seed in range(4):
        _, tokens = walk(CASES[name], seed)
        follower = guide(CASES[name])
        for token in tokens:
            choices, forced = allowed(follower), follower.forced()
            if forced:
                forced_tokens += 1
                assert choices == forced[:1]
            else:
                assert [choice for choice in range(384) if follower.allows(choice)] == choices
            follower.advance([token])
    assert forced_tokens or name in ("object", "gbnf")


@pytest.mark.parametrize("name", ["schema", "regex", "lark"])
def test_every_forced_token_is_the_only_one(name: str) -> None:
    """Not just the first: the others are drafted with full confidence."""
    for seed in range(6):
        _, tokens = walk(CASES[name], seed)
        follower = guide(CASES[name])
        for token in tokens:
            forced = follower.forced()
            for depth in range(len(forced)):
                assert allowed(follower, forced[:depth]) == [forced[depth]]
            follower.advance([token])


def test_a_mask_is_applied_to_a_copy() -> None:
    row = np.linspace(-3, 3, 384, dtype=np.float32)
    row.flags.writeable = False
    follower = guide(CASES["regex"])
    masked = follower.mask(row)
    kept = np.flatnonzero(masked > -np.inf)
    assert kept.tolist() == allowed(follower)
    assert (masked[kept] == row[kept]).all()


def test_logits_beyond_the_vocabulary_are_masked() -> None:
    assert max(allowed(guide(SCHEMA), size=400)) < 384


def test_control_tokens_are_never_allowed_inside() -> None:
    follower = guide(Constraint("regex", "(.|\n)*"))
    assert set(range(3)) - set(allowed(follower)) == {1}
    assert not any(not WORDS.token_bytes(token) for token in allowed(follower)[2:])


# --- the end -------------------------------------------------------------------------------------------


def test_the_end_is_forbidden_before_it_may_come_and_forced_when_nothing_else_may() -> None:
    follower = guide(Constraint("regex", "ab?"))
    assert not WORDS.end_tokens & set(allowed(follower))
    follower.advance(WORDS.encode("a"))
    assert not follower.complete
    assert set(allowed(follower)) == {*WORDS.encode("b"), *WORDS.end_tokens}
    follower.advance(WORDS.encode("b"))
    assert set(allowed(follower)) == WORDS.end_tokens
    assert follower.forced() == []
    whole = guide(Constraint("regex", "ab?"))
    whole.advance(WORDS.encode("ab"))
    assert whole.complete


def test_an_end_token_completes_the_constraint() -> None:
    follower = guide(Constraint("regex", "ab?"))
    follower.advance([*WORDS.encode("a"), 2])
    assert follower.complete
    follower.advance([5, 6])  # what comes after it does not matter
    assert set(allowed(follower)) == WORDS.end_tokens


def test_with_ignore_eos_the_end_is_allowed_only_where_nothing_else_is() -> None:
    follower = guide(Constraint("regex", "ab?"), ignore_eos=True)
    follower.advance(WORDS.encode("a"))
    assert allowed(follower) == WORDS.encode("b")
    assert not follower.allows(2)
    assert set(allowed(guide(Constraint("grammar", 'start: ""'), ignore_eos=True))) == WORDS.end_tokens


def test_a_vocabulary_without_an_end_can_be_constrained() -> None:
    tokenizer = FakeTokenizer()
    tokenizer.end_tokens = frozenset()
    follower = compile_constraint(Constraint("regex", "ab?"), tokenizer)
    follower.advance(b"a")
    assert allowed(follower, size=SIZE) == [ord("b")]
    follower.advance(b"b")
    assert follower.complete
    assert len(allowed(follower, size=SIZE)) == SIZE  # whatever comes is not part of the answer


def test_a_forbidden_token_is_an_error() -> None:
    with pytest.raises(RequestError, match="does not allow"):
        guide(CASES["regex"]).advance(WORDS.encode("x"))


# --- drafts --------------------------------------------------------------------------------------------


def pruned(follower: Guide, text: str) -> str:
    draft = follower.prune(Draft(tuple(WORDS.encode(text)), "test"))
    return "" if draft is None else text_of(draft.tokens)


def test_a_draft_is_cut_at_the_first_forbidden_token() -> None:
    follower = guide(Constraint("regex", "[0-9]+-[a-z]{3,}"))
    assert pruned(follower, "12-abcXYZ") == "12-abc"
    assert pruned(follower, "x12") == ""
    follower.advance(WORDS.encode("3"))
    assert pruned(follower, "4-q9") == "4-q"


def test_a_draft_is_cut_before_what_ends_the_answer() -> None:
    """Its row would be for a token that nobody wants; the row before chooses the last one as well."""
    follower = guide(Constraint("regex", "[0-9]+;"))
    assert pruned(follower, "12;34") == "12"
    assert pruned(follower, ";") == ""
    draft = guide(Constraint("regex", "[0-9]+")).prune(Draft((*WORDS.encode("12"), 2, 7), "test"))
    assert draft == Draft(tuple(WORDS.encode("12")), "test")


def test_a_draft_in_another_spelling_is_cut() -> None:
    follower = guide(CASES["schema"])
    first = WORDS.encode('{"first_name')
    letters = [WORDS.encode(letter)[0] for letter in '{"first_name']
    assert len(first) < len(letters)
    draft = follower.prune(Draft(tuple(letters), "test"))
    assert draft is not None
    whole = allowed(follower, draft.tokens)
    assert letters[len(draft)] not in whole, "cut where the mask forbids it"


def test_a_tree_keeps_its_allowed_branches() -> None:
    a, b, x, one, two, end = (*(WORDS.encode(letter)[0] for letter in "abx12"), 2)
    follower = guide(Constraint("regex", "(a[0-9]+|b[0-9]+);?"))
    tokens = (x, a, one, b, a, two, end, two)
    parents = (-1, -1, 1, -1, 0, 3, 2, 2)
    confidence = tuple(i / 10 for i in range(8))
    draft = follower.prune(Draft(tokens, "tree", parents, confidence, {"count": 1.0}))
    assert draft == Draft(
        (a, one, b, two, two), "tree", (-1, 0, -1, 2, 1), (0.1, 0.2, 0.3, 0.5, 0.7), {"count": 1.0}
    )
    assert follower.prune(Draft((x, x), "tree", (-1, 0))) is None
    whole = Draft((a, b, one), "tree", (-1, -1, 1))
    assert follower.prune(whole) is whole


def test_a_sampled_draft_stays_whole() -> None:
    """Whether a token is verified must not depend on what was drawn."""
    uniform = np.full(384, 1 / 384)
    draft = Draft(tuple(WORDS.encode("xy")), "sampled", probs=(uniform, uniform))
    assert guide(CASES["regex"]).prune(draft) is draft


def test_nothing_is_kept_of_a_draft_after_the_end() -> None:
    follower = guide(Constraint("regex", "a"))
    follower.advance(WORDS.encode("a"))
    assert pruned(follower, "aa") == ""
    assert follower.prune(Draft((5, 6), "tree", (-1, -1))) is None


# --- choosing ------------------------------------------------------------------------------------------


def sampler(params: SamplingParams) -> RequestSampler:
    assert params.constraint is not None
    follower = compile_constraint(params.constraint, WORDS, ignore_eos=params.ignore_eos)
    return RequestSampler(
        params, seed=3, vocab_size=384, end_tokens=WORDS.end_tokens, prompt=[9, 9], guide=follower
    )


SETTINGS = {
    "greedy": SamplingParams(constraint=SCHEMA),
    "warm": SamplingParams(constraint=SCHEMA, temperature=1.0),
    "truncated": SamplingParams(constraint=SCHEMA, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01),
    "penalised": SamplingParams(constraint=SCHEMA, temperature=0.7, repetition_penalty=1.3),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_shortcuts_choose_what_the_mask_would(setting: str) -> None:
    """`choose` avoids computing masks where it can."""
    params = SETTINGS[setting]
    rng = np.random.default_rng(5)
    whole = sampler(params)
    while whole.completed_at is None and whole.position < 90:
        row = rng.standard_normal(384).astype(np.float32) * 3
        probs = whole.distribution(row)
        token = whole.choose(row)
        assert probs[token] > 0
        assert whole._guide is not None
        masked = whole._guide.mask(whole._adjust(row, ()))
        assert token == choose_token(masked, params, make_key(3, whole.position, MATCH))
        whole.advance(token)
    assert whole.position > 20


def test_a_sampler_says_where_its_constraint_was_complete() -> None:
    choosing = sampler(SamplingParams(constraint=Constraint("regex", "ab")))
    for letter in "ab":
        assert choosing.completed_at is None
        choosing.advance(WORDS.encode(letter)[0])
    assert choosing.completed_at == choosing.position == 4
    choosing.advance(2)
    assert choosing.completed_at == 4


def test_the_same_extra_tokens_are_seen_by_choose_and_distribution() -> None:
    choosing = sampler(SamplingParams(constraint=Constraint("regex", "a[0-9]b")))
    extra = WORDS.encode("a")
    row = np.zeros(384, np.float32)
    probs = choosing.distribution(row, extra)
    assert np.flatnonzero(probs).tolist() == sorted(WORDS.encode(digit)[0] for digit in "0123456789")[:1]
    assert choosing.choose(row, extra) == WORDS.encode("0")[0]


def test_damaged_logits_are_still_found() -> None:
    with pytest.raises(BackendError):
        sampler(SamplingParams(constraint=CASES["regex"])).choose(np.full(384, np.nan, np.float32))


def test_settings_that_leave_no_token_are_an_error() -> None:
    bias = {token: -np.inf for token in range(384) if WORDS.token_bytes(token)[:1].isdigit()}
    choosing = sampler(SamplingParams(constraint=Constraint("regex", "[0-9]+"), logit_bias=bias))
    with pytest.raises(RequestError, match="No token is allowed"):
        choosing.choose(np.zeros(384, np.float32))


def test_a_draft_model_proposes_within_the_constraint() -> None:
    coupled = CoupledSampler(384, WORDS.end_tokens, lambda params: answer_guide(params, WORDS))
    params = SamplingParams(constraint=Constraint("regex", "a[0-9]b"), temperature=1.0)
    view = RequestView(1, [7, 7], params, seed=1, prompt_length=2)
    row: Logits = np.random.default_rng(1).standard_normal(384).astype(np.float32)
    first, chance, _ = coupled.propose(row, view, ())
    assert (text_of([first]), chance) == ("a", 1.0)
    digit, _, _ = coupled.propose(row, view, (first,))
    assert text_of([digit]).isdigit()
    view.tokens += [first, digit]
    last, chance, _ = coupled.propose(row, view, ())
    assert (text_of([last]), chance) == ("b", 1.0)
    del view.tokens[3:]  # a round was taken back
    again, _, _ = coupled.propose(row, view, ())
    assert text_of([again]).isdigit()


# --- vocabularies --------------------------------------------------------------------------------------


def test_a_vocabulary_is_built_once_and_a_constraint_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Words()
    compiled: list[str] = []
    original = trial.llguidance_grammar

    def counting(form: Form, text: str) -> str:
        compiled.append(text)
        return original(form, text)

    monkeypatch.setattr(module, "llguidance_grammar", counting)
    for _ in range(3):
        compile_constraint(SCHEMA, tokenizer)
    assert tokenizer.asked < 2 * tokenizer.vocab_size
    assert compiled == [SCHEMA.source]
    for number in range(module.KEPT + 1):
        compile_constraint(Constraint("regex", f"a{number}"), tokenizer)
    compile_constraint(SCHEMA, tokenizer)
    assert compiled.count(SCHEMA.source) == 2, "the least recently used is given up"


def test_a_vocabulary_does_not_outlive_its_tokenizer() -> None:
    tokenizer = Words()
    follower = compile_constraint(SCHEMA, tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None
    assert follower.forced() or allowed(follower), "a guide goes on"


def test_guides_of_one_constraint_are_apart() -> None:
    one, two = guide(CASES["regex"]), guide(CASES["regex"])
    one.advance(WORDS.encode("Hello, "))
    assert text_of(two.forced()) == "Hel"
    assert allowed(one) != allowed(two)


def test_a_tokenizer_that_puts_a_space_before_a_text_spells_forced_text_without_it() -> None:
    spacing = Words(space=True)
    follower = compile_constraint(Constraint("regex", "there are other ways(!|\\?)"), spacing)
    forced = follower.forced()
    assert "there are other way".startswith(text_of(forced)[:19])
    assert forced[:3] == WORDS.encode("there are other ways")[:3]


def test_a_vocabulary_that_cannot_spell_the_constraint_leaves_no_token() -> None:
    letters = FakeTokenizer(6)  # a to e, and the end
    follower = compile_constraint(Constraint("regex", "ab[x-z]c"), letters)
    assert follower.forced()[:2] == [0, 1]
    follower.advance([0, 1])
    with pytest.raises(RequestError, match="no token"):
        allowed(follower, size=6)


# --- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint("json_schema", "{"), "is not JSON"),
        (Constraint("json_schema", "[" * 50_000), "is not JSON"),
        (Constraint("json_schema", "3"), "must be a JSON object"),
        (Constraint("json_schema", '{"type": "objekt"}'), "objekt"),
        (Constraint("json_schema", '{"not": {"const": 1}}'), "not"),
        (Constraint("json_schema", '{"$ref": "http://example.org/a.json"}'), "example.org"),
        (Constraint("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}'), "minLength"),
        (Constraint("json_schema", '{"$ref": "#"}'), "no token"),  # compiles, and allows no text that ends
        (Constraint("json_schema", '{"items": ' * 90 + "{}" + "}" * 90 + "x"), "is not JSON"),
        (Constraint("regex", "(a"), "unclosed group"),
        (Constraint("regex", "a" * (MAX_SOURCE + 1)), "characters"),
        (Constraint("grammar", "start: foo"), "foo"),
        (Constraint("grammar", 'root ::= ("a"'), "Expected"),
        (Constraint("grammar", "root ::= " + "(" * 5000), "Expected"),
        (Constraint("regex"), "is empty"),
        (Constraint("json_object", "{}"), "does not take a source"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_constraint_that_cannot_be_used_is_refused_with_the_reason(
    constraint: Constraint, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        compile_constraint(constraint, WORDS)
    assert caught.value.hint
    assert len(caught.value.message) < 400
    assert "\n" not in caught.value.message


def test_the_size_of_a_compiled_grammar_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MAX_GRAMMAR", 10)
    with pytest.raises(RequestError, match="cannot be used"):
        compile_constraint(SCHEMA, Words())


def test_a_control_token_that_a_grammar_names_lets_no_other_in() -> None:
    tokenizer = FakeTokenizer(260)
    follower = compile_constraint(Constraint("grammar", 'start: "x" (<[257]> | "b") "a"'), tokenizer)
    follower.advance([ord("x")])
    allowed = np.flatnonzero(np.isfinite(follower.mask(np.zeros(260, np.float32)))).tolist()
    assert allowed == [ord("b"), 257]


def test_a_source_can_be_checked_without_a_vocabulary() -> None:
    check_source(SCHEMA)
    with pytest.raises(RequestError, match="is not JSON"):
        check_source(Constraint("json_schema", "{'a': 1}"))


def test_without_llguidance_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingDependencyError) as caught:
        compile_constraint(SCHEMA, Words())
    assert add_extra("grammar") in str(caught.value)


def test_a_constraint_that_becomes_too_complex_is_an_error_and_not_a_hang() -> None:
    names = [f"name{number}" for number in range(8)]
    rules = "\n".join(f'{name}: "x" | {name} {name}' for name in names)
    follower = guide(Constraint("grammar", f"start: {' | '.join(names)}\n{rules}"))
    row = np.zeros(384, np.float32)

    def go_on() -> None:
        for _ in range(3000):
            follower.mask(row)
            follower.advance(WORDS.encode("x"))

    with pytest.raises(RequestError, match=r"too complex to enforce|does not allow"):
        go_on()
