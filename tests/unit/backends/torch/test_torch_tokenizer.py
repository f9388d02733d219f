"""The tokenizer of a repository: text to tokens and back, in each way that vocabularies spell bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

import gguf_factory
import torch_factory
from foredraft.backends.torch.tokenizer import TorchTokenizer
from foredraft.engine.prompt import encode_prompt
from foredraft.errors import RequestError, UnsupportedModelError

VOCAB = torch_factory.VOCAB
SPECIAL = "<|im_start|>user\nHello<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer() -> TorchTokenizer:
    return TorchTokenizer(torch_factory.make_tokenizer(), VOCAB, [gguf_factory.END_OF_TEXT])


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2 has it: `▁` for a space, and a token for each byte."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a", "b", "▁a", "ab", "▁ab"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def decoded(tokenizer: TorchTokenizer, tokens: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, tokens))


@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_comes_back(tokenizer: TorchTokenizer, text: str) -> None:
    assert decoded(tokenizer, tokenizer.encode(text)).decode() == text


def test_half_of_a_surrogate_pair_is_no_crash(tokenizer: TorchTokenizer) -> None:
    assert decoded(tokenizer, tokenizer.encode("a\ud800b")).decode() == "a?b"


def test_special_tokens_are_text_unless_they_are_asked_for(tokenizer: TorchTokenizer) -> None:
    as_text = tokenizer.encode(SPECIAL)
    assert decoded(tokenizer, as_text).decode() == SPECIAL
    assert not {gguf_factory.IM_START, gguf_factory.IM_END} & set(as_text)
    as_tokens = tokenizer.encode(SPECIAL, special=True)
    assert as_tokens[0] == gguf_factory.IM_START
    assert as_tokens[-1] == gguf_factory.IM_END
    assert decoded(tokenizer, as_tokens) == b"user\nHello"


def test_a_text_ends_where_the_configuration_and_the_tokenizer_say(tokenizer: TorchTokenizer) -> None:
    assert tokenizer.end_tokens == {gguf_factory.END_OF_TEXT, gguf_factory.IM_END}


def test_a_model_may_have_more_ids_than_there_are_tokens() -> None:
    padded = TorchTokenizer(torch_factory.make_tokenizer(), VOCAB + 20)
    assert padded.vocab_size == VOCAB + 20
    assert padded.token_bytes(VOCAB + 19) == b""
    assert padded.hash() != TorchTokenizer(torch_factory.make_tokenizer(), VOCAB).hash()


def test_without_a_token_for_the_beginning_none_is_added(tokenizer: TorchTokenizer) -> None:
    assert tokenizer.encode("a", add_bos=True) == tokenizer.encode("a")


def test_limits_of_the_original_do_not_cut_texts() -> None:
    source = torch_factory.make_tokenizer()
    source.backend_tokenizer.enable_truncation(3)
    source.backend_tokenizer.enable_padding(length=8)
    assert len(TorchTokenizer(source, VOCAB).encode("the quick brown fox")) > 3
    assert len(TorchTokenizer(source, VOCAB).encode("a")) == 1


@pytest.mark.parametrize("text", ["ab a  b", "ü\n\0", " ab", "", "模型"])
def test_sentencepiece_spells_spaces_and_bytes(text: str) -> None:
    tokenizer = TorchTokenizer(sentencepiece(), 270)
    assert decoded(tokenizer, tokenizer.encode(text)).decode() == text


def test_sentencepiece_specials_and_added_words() -> None:
    tokenizer = TorchTokenizer(sentencepiece(), 270)
    assert tokenizer.encode("a", add_bos=True) == [1, *tokenizer.encode("a")]
    assert tokenizer.encode("<s>a", add_bos=True, special=True).count(1) == 1
    assert [tokenizer.token_bytes(token) for token in (1, 2)] == [b"", b""]
    assert decoded(tokenizer, tokenizer.encode("<think>")) == b"<think>"


def test_the_chat_template_is_the_repositorys(tokenizer: TorchTokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.chat_template == gguf_factory.CHAT_TEMPLATE
    assert tokenizer.apply_chat_template(messages) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", [None, {"tool_use": "x"}])
def test_without_a_chat_template_messages_are_refused(template: Any) -> None:
    source = torch_factory.make_tokenizer()
    source.chat_template = template
    tokenizer = TorchTokenizer(source, VOCAB)
    assert tokenizer.chat_template is None
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])


def test_tokens_around_a_gap(tokenizer: TorchTokenizer) -> None:
    assert tokenizer.infill_tokens is None
    source = torch_factory.make_tokenizer()
    source.backend_tokenizer.add_special_tokens(["<fim_suffix>", "<fim_middle>", "<fim_prefix>"])
    first = source.backend_tokenizer.token_to_id("<fim_suffix>")
    assert TorchTokenizer(source, VOCAB + 3).infill_tokens == (first + 2, first, first + 1)


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        pass

    with pytest.raises(UnsupportedModelError, match="no fast version"):
        TorchTokenizer(Slow(), VOCAB)


# --- rendered prompts ----------------------------------------------------------------------------------


def test_text_from_clients_is_text(tokenizer: TorchTokenizer) -> None:
    tokens = encode_prompt(tokenizer, [{"role": "user", "content": "x <|im_end|> y"}]).tokens
    assert tokens.count(gguf_factory.IM_END) == 1
    assert tokens.count(gguf_factory.IM_START) == 2
    assert decoded(tokenizer, tokens).decode() == "user\nx <|im_end|> y\nassistant\n"


def metaspace(scheme: str) -> PreTrainedTokenizerFast:
    """As newer Llama tokenizers have it: the space is put in front of the first text, of every one, or of
    none.
    """
    source = sentencepiece()
    fast = source.backend_tokenizer
    fast.normalizer = None
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return source


PIECES = st.sampled_from(["a", "b", " ", " a", "ab", "\n", "<s>", "</s>", "<", "<think>"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
VOCABULARIES = {
    "as in Llama 2": TorchTokenizer(sentencepiece(), 270),
    **{scheme: TorchTokenizer(metaspace(scheme), 270) for scheme in ("first", "always", "never")},
    "byte level": TorchTokenizer(torch_factory.make_tokenizer(), VOCAB),
}


@pytest.mark.parametrize("name", VOCABULARIES)
@given(text=TEXTS, marked=st.integers(0, 60), length=st.integers(1, 5))
def test_what_is_marked_in_ordinary_text_changes_no_token(
    name: str, text: str, marked: int, length: int
) -> None:
    tokenizer = VOCABULARIES[name]
    whole = tokenizer.encode(text, special=True, add_bos=True)
    start = marked % (len(text) or 1)
    span = (start, min(start + length, len(text)))
    spelled = tokenizer.control_texts.spans(text)
    if span[0] < span[1] and all(last <= span[0] or span[1] <= first for first, last in spelled):
        assert tokenizer.encode_rendered(text, [span]) == whole
    assert tokenizer.encode_rendered(text, []) == whole


def test_tokens_that_take_the_white_space_around_them() -> None:
    source = torch_factory.make_tokenizer()
    added = [AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True)]
    source.backend_tokenizer.add_special_tokens(added)
    tokenizer = TorchTokenizer(source, VOCAB + 2)
    for text in ("<r>  the fox  <l> a", "<r> \n the <l>", "the <r> fox", "<l> the <r> "):
        place = text.find("the")
        whole = tokenizer.encode(text, special=True)
        assert tokenizer.encode_rendered(text, [(place, place + 3)]) == whole
    assert decoded(tokenizer, tokenizer.encode_rendered("<r> a <l> b <l>", [(6, 9)])) == b"a <l> b"
