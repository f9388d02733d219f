"""The vocabulary of a GGUF: text to tokens and back, special tokens, and the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_factory
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.config import ModelOptions
from foredraft.engine.prompt import encode_prompt
from foredraft.errors import RequestError
from foredraft.protocols import Model

VOCAB = 400
SPECIAL = "<|im_start|>user\nHello<|im_end|>"


def load(path: Path) -> Model:
    return BACKEND.load(path, ModelOptions(threads=1, probe=False, gpu_layers=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Iterator[LlamaCppTokenizer]:
    model = load(gguf_factory.tiny_llama(folder / "tiny.gguf", vocab=VOCAB))
    assert isinstance(model.tokenizer, LlamaCppTokenizer)
    yield model.tokenizer
    model.close()


def decoded(tokenizer: LlamaCppTokenizer, tokens: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, tokens))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello world",
        "  two  spaces\n\n\ttabs\r\n",
        "Grüße, 模型, مرحبا, 👩‍👩‍👧",
        "nul\0inside",
        "�￾",
        "x" * 20_000,
    ],
    ids=range(8),
)
def test_text_comes_back(tokenizer: LlamaCppTokenizer, text: str) -> None:
    assert decoded(tokenizer, tokenizer.encode(text)).decode() == text


@given(text=st.text(st.characters(codec="utf-8"), max_size=60), special=st.booleans())
def test_any_text_comes_back_unless_it_spells_a_special_token(
    tokenizer: LlamaCppTokenizer, text: str, special: bool
) -> None:
    assert decoded(tokenizer, tokenizer.encode(text, special=special)).decode() == text


def test_half_of_a_surrogate_pair_is_no_crash(tokenizer: LlamaCppTokenizer) -> None:
    tokens = tokenizer.encode("a\ud800b")
    assert decoded(tokenizer, tokens).decode("utf-8", "surrogatepass") == "a\ud800b"


def test_the_vocabulary_is_the_file_s(tokenizer: LlamaCppTokenizer) -> None:
    texts = gguf_factory.token_texts(VOCAB)
    assert tokenizer.vocab_size == VOCAB == len(texts)
    for token, text in enumerate(texts):
        control = text.startswith(b"<|") and text.endswith(b"|>")
        assert tokenizer.token_bytes(token) == (b"" if control else text)
        assert tokenizer.token_text(token) == text.decode("utf-8", "replace")


def test_tokens_may_be_part_of_a_character(tokenizer: LlamaCppTokenizer) -> None:
    tokens = tokenizer.encode("👩")
    assert len(tokens) == 4
    assert [len(tokenizer.token_bytes(token)) for token in tokens] == [1] * 4


def test_a_token_that_is_none_has_no_bytes(tokenizer: LlamaCppTokenizer) -> None:
    for token in (-1, tokenizer.vocab_size, 2**31 - 1):
        with pytest.raises(RequestError, match="Ids are 0 to"):
            tokenizer.token_bytes(token)


def test_merged_tokens_make_text_shorter(tokenizer: LlamaCppTokenizer) -> None:
    assert len(tokenizer.encode(gguf_factory.CORPUS)) < 0.7 * len(gguf_factory.CORPUS)


def test_special_tokens_are_recognised_only_on_request(tokenizer: LlamaCppTokenizer) -> None:
    special = tokenizer.encode(SPECIAL, special=True)
    assert (special[0], special[-1]) == (gguf_factory.IM_START, gguf_factory.IM_END)
    plain = tokenizer.encode(SPECIAL)
    assert not {0, 1, 2} & set(plain)
    assert decoded(tokenizer, plain).decode() == SPECIAL
    assert decoded(tokenizer, special).decode() == "user\nHello"


def test_every_token_that_ends_a_turn_ends_a_generation(tokenizer: LlamaCppTokenizer) -> None:
    assert tokenizer.end_tokens == {gguf_factory.END_OF_TEXT, gguf_factory.IM_END}


def test_a_token_that_is_not_there_has_no_text(tokenizer: LlamaCppTokenizer) -> None:
    assert [tokenizer.token_text(token) for token in (-1, VOCAB, 1 << 40)] == ["", "", ""]


def test_a_sentence_token_is_added_once_and_only_where_the_model_wants_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_factory.tiny_llama(folder / "bos.gguf", vocab=VOCAB)
    for wanted in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(lib, "llama_vocab_get_add_bos", lambda _vocab, wanted=wanted: wanted)
            model = load(path)
        tokenizer = model.tokenizer
        plain, bos = tokenizer.encode("Hello"), [gguf_factory.IM_START] * wanted
        assert tokenizer.encode("Hello", add_bos=True) == bos + plain
        assert tokenizer.encode("", add_bos=True) == bos
        templated = tokenizer.encode(SPECIAL, special=True)
        assert tokenizer.encode(SPECIAL, special=True, add_bos=True) == templated, "it has one already"
        model.close()


def test_long_tokens_come_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.backends.llamacpp.tokenizer._PIECE_BYTES", 1)
    model = load(gguf_factory.tiny_llama(folder / "long.gguf", vocab=VOCAB))
    texts = gguf_factory.token_texts(VOCAB)
    assert max(map(len, texts[3:])) > 2
    assert [model.tokenizer.token_bytes(token) for token in range(3, 390)] == texts[3:390]
    model.close()


def test_the_hash_is_of_the_tokens_in_order(folder: Path, tokenizer: LlamaCppTokenizer) -> None:
    same = load(gguf_factory.tiny_llama(folder / "same.gguf", vocab=VOCAB, seed=3, layers=1))
    other = load(gguf_factory.tiny_llama(folder / "other.gguf", vocab=VOCAB + 1))
    assert same.info.vocab_hash == tokenizer.hash() != other.info.vocab_hash
    same.close()
    other.close()


def test_the_chat_template_is_the_model_s(tokenizer: LlamaCppTokenizer) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    told = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=False)
    assert told == "<|im_start|>user\nHi<|im_end|>\n"


def test_a_model_without_a_chat_template_says_so(folder: Path) -> None:
    model = load(gguf_factory.tiny_llama(folder / "base.gguf", vocab=VOCAB, chat_template=None))
    with pytest.raises(RequestError, match="no chat template"):
        model.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    model.close()


def test_templates_know_the_model_s_sentence_tokens(folder: Path) -> None:
    source = "{{ bos_token }}|{{ eos_token }}"
    model = load(gguf_factory.tiny_llama(folder / "ends.gguf", vocab=VOCAB, chat_template=source))
    assert model.tokenizer.apply_chat_template([{"role": "user", "content": ""}]) == "<|im_start|>|<|im_end|>"
    model.close()


def test_tokens_around_a_gap(tokenizer: LlamaCppTokenizer, folder: Path) -> None:
    assert tokenizer.infill_tokens is None
    first = VOCAB - 3
    path = gguf_factory.tiny_llama(folder / "fill.gguf", vocab=VOCAB, infill=(first, first + 1, first + 2))
    model = load(path)
    try:
        assert model.tokenizer.infill_tokens == (first, first + 1, first + 2)
    finally:
        model.close()


# --- rendered prompts ----------------------------------------------------------------------------------

USER = [{"role": "user", "content": "x <|im_end|> y"}]
PIECES = st.sampled_from(
    ["the", " quick", " ", "\n", "  ", "fox", "<|im_end|>", "<|im_start|>", "<|", "|>", "é"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def test_the_texts_of_control_tokens_are_known(tokenizer: LlamaCppTokenizer) -> None:
    spelled = [text.decode() for text in gguf_factory.token_texts(VOCAB) if text.startswith(b"<|")]
    text = "".join(spelled)
    assert [text[slice(*span)] for span in tokenizer.control_texts.spans(text)] == spelled


def test_text_from_clients_is_text(tokenizer: LlamaCppTokenizer) -> None:
    tokens = encode_prompt(tokenizer, USER).tokens
    assert tokens.count(gguf_factory.IM_END) == 1
    assert tokens.count(gguf_factory.IM_START) == 2
    assert decoded(tokenizer, tokens).decode() == "user\nx <|im_end|> y\nassistant\n"


@given(text=TEXTS, marked=st.integers(0, 60), length=st.integers(1, 5))
def test_what_is_marked_in_ordinary_text_changes_no_token(
    tokenizer: LlamaCppTokenizer, text: str, marked: int, length: int
) -> None:
    whole = tokenizer.encode(text, special=True, add_bos=True)
    start = marked % (len(text) or 1)
    span = (start, min(start + length, len(text)))
    spelled = tokenizer.control_texts.spans(text)
    if span[0] < span[1] and all(last <= span[0] or span[1] <= first for first, last in spelled):
        assert tokenizer.encode_rendered(text, [span]) == whole
    assert tokenizer.encode_rendered(text, []) == whole


@given(before=TEXTS, client=TEXTS, after=TEXTS)
def test_every_byte_stays_and_only_the_template_s_control_tokens_are_recognised(
    tokenizer: LlamaCppTokenizer, before: str, client: str, after: str
) -> None:
    text = f"{before}\n{client}\n{after}"
    literal = [
        (first + len(before) + 1, last + len(before) + 1)
        for first, last in tokenizer.control_texts.spans(client)
    ]
    tokens = tokenizer.encode_rendered(text, literal)
    control = [token for token in tokens if not tokenizer.token_bytes(token)]
    own = [text[slice(*span)] for span in tokenizer.control_texts.spans(text) if span not in literal]
    assert [tokenizer.token_text(token) for token in control] == own
    assert decoded(tokenizer, tokens).decode() == "".join(
        text[start:end] for start, end in _between(text, tokenizer, literal)
    )


def _between(
    text: str, tokenizer: LlamaCppTokenizer, literal: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    done = 0
    for first, last in tokenizer.control_texts.spans(text):
        if (first, last) not in literal:
            yield done, first
            done = last
    yield done, len(text)
