"""tiktoken vocabularies: the published ids, reloaded without a network, the same in other tools."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from whet.errors import UserError
from whet.models.text.tiktoken_bpe import from_encoding, tiktoken_tokenizer
from whet.models.text.tokenizers import HuggingFaceTokenizer, load_tokenizer
from whet.records import Message

RANKS = Path(__file__).resolve().parents[2] / "../shared/data/tokenizers/tiktoken_cache"


@pytest.fixture
def gpt2_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tiktoken")
    if not RANKS.is_dir():
        pytest.skip("no tiktoken cache beside the repository")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(RANKS))


@pytest.mark.usefixtures("gpt2_cache")
def test_gpt2_ids_are_the_published_ones() -> None:
    tokenizer = tiktoken_tokenizer("gpt2")
    assert tokenizer.encode("hello world") == [31373, 995]
    assert (tokenizer.eos, tokenizer.vocab_size, tokenizer.stops) == (50256, 50257, {50256})
    assert tokenizer.eos not in tokenizer.encode("<|endoftext|>")
    assert tokenizer.decode([31373, 995, 50256]) == "hello world"
    assert tokenizer.prompt([Message(role="user", content="hello"), Message(role="user", content="x")]) == (
        tokenizer.encode("hello\nx")
    )


@pytest.mark.usefixtures("gpt2_cache")
def test_gpt2_reloads_without_network_and_for_other_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiktoken

    published, tokenizer = tiktoken.get_encoding("gpt2"), tiktoken_tokenizer("gpt2")
    tokenizer.save(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "nothing"))
    again, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)

    @given(st.text(st.one_of(st.sampled_from(" \n\t'sdmtlvre09aZ<|endoftext|>é"), st.characters(codec="utf-8"))))
    @settings(deadline=None, max_examples=200)
    def same(text: str) -> None:
        ids = published.encode_ordinary(text)
        assert ids == tokenizer.encode(text) == again.encode(text) == theirs.encode(text, split_special_tokens=True)
        assert again.decode(ids) == text

    same()
    assert theirs.eos_token_id == again.eos == 50256


def test_digit_groups_of_later_encodings_reach_other_tools(tmp_path: Path) -> None:
    """The split of cl100k_base (digits by threes, possessively), with a vocabulary small enough to write here."""
    tiktoken = pytest.importorskip("tiktoken")
    pattern = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    )
    pairs = [b"11", b"1111", b"  ", b" a", b"\n\n", b"\n ", b"'s", b"aa", b"a1"]
    ranks = {**{bytes([i]): i for i in range(256)}, **{pair: 256 + i for i, pair in enumerate(pairs)}}
    specials = {"<|endoftext|>": 300, "<|fim_prefix|>": 301}
    encoding = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
    tokenizer = from_encoding(encoding)
    tokenizer.save(tmp_path)
    theirs, again = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert tokenizer.encode("1111") == [256, 49, 49]  # 111 then 1: the pair, and no merge across the split

    @given(st.text("1a \n\r's!é", max_size=20))
    @settings(deadline=None, max_examples=300)
    def same(text: str) -> None:
        assert encoding.encode_ordinary(text) == tokenizer.encode(text) == theirs.encode(text) == again.encode(text)

    same()
    assert theirs.convert_tokens_to_ids("<|fim_prefix|>") == 301
    assert tokenizer.vocab_size == HuggingFaceTokenizer(theirs).vocab_size == 302  # the largest id fits
    assert tokenizer.decode([49, 301, 300]) == again.decode([49, 301, 300]) == "1"


def test_tiktoken_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UserError, match="pip install tiktoken"):
        tiktoken_tokenizer("gpt2")


def test_unknown_encoding_lists_the_known() -> None:
    pytest.importorskip("tiktoken")
    with pytest.raises(UserError, match="gpt2"):
        tiktoken_tokenizer("gpt1")
