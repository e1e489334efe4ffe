"""Tokenisers in GGUF files: token texts and types, special ids, scores, and which tokenisers are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from tests.hard_texts import HARD_TEXTS
from tests.small import train_bpe
from whet.errors import UserError
from whet.models.export.gguf_vocabulary import Vocabulary, vocabulary
from whet.models.export.piece_scores import first_difference, merged_by_score, piece_scores
from whet.models.text.byte_level_splits import SPLITS, split_name, split_named
from whet.models.text.chat_settings import with_chat
from whet.models.text.tokenizers import HuggingFaceTokenizer, character_tokenizer, load_tokenizer, wrap_backend

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["▁", *"abcdeghlnortw"]
MERGES = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "t"), ("▁", "a"), ("▁a", "n"), ("o", "w"), ("l", "ow")]
PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def written(tokenizer: HuggingFaceTokenizer, *, rows: int | None = None, **hf: Any) -> Vocabulary:
    return vocabulary(tokenizer, hf, rows=rows or tokenizer.vocab_size, model_name="mine")


def pieces(
    merges: list[tuple[str, str]] = MERGES,
    bytes_: list[str] = BYTES,
    normalizer: Any = PREPEND,
    pre: Any = None,
    **settings: Any,
) -> HuggingFaceTokenizer:
    """A vocabulary as Llama 2 has it: <unk>, <s>, </s>, the bytes, merged pieces, letters."""
    listed = ["<unk>", "<s>", "</s>", *bytes_, *("".join(pair) for pair in merges), *LETTERS]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(listed))}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre is not None:
        backend.pre_tokenizer = pre
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = wrap_backend(backend, eos="</s>", specials=["<s>", "<unk>"], **settings)
    tokenizer._hf.bos_token, tokenizer._hf.unk_token = "<s>", "<unk>"
    return HuggingFaceTokenizer(tokenizer._hf)


def test_byte_level_tokens_types_and_ids() -> None:
    backend = Backend.from_str(train_bpe(["the text that is cut"] * 4, 280)._hf.backend_tokenizer.to_str())
    size = backend.get_vocab_size()
    backend.add_tokens(["<tool>"])
    tokenizer = wrap_backend(backend, eos="<eos>", specials=["<|im_start|>", "<|im_end|>"], chat_template="{{ 1 }}")
    found = written(tokenizer, rows=size + 5, bos_token_id=size + 1)
    settings = found.settings
    assert (settings["tokenizer.ggml.model"], settings["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert settings["tokenizer.ggml.tokens"][size:] == [
        "<tool>",
        "<|im_start|>",
        "<|im_end|>",
        f"[PAD{size + 3}]",
        f"[PAD{size + 4}]",
    ]
    types = settings["tokenizer.ggml.token_type"]
    assert types[size:] == [USER_DEFINED, CONTROL, CONTROL, UNUSED, UNUSED]
    assert types[tokenizer.eos] == CONTROL
    assert set(types[1:size]) == {NORMAL}
    vocab = backend.get_vocab()
    assert all(vocab[token] == index for index, token in enumerate(settings["tokenizer.ggml.tokens"][: size + 3]))
    merges = json.loads(backend.to_str())["model"]["merges"]
    assert settings["tokenizer.ggml.merges"] == [f"{left} {right}" for left, right in merges]
    assert settings["tokenizer.ggml.eos_token_id"] == tokenizer.eos
    assert settings["tokenizer.ggml.bos_token_id"] == size + 1  # of config.json: the tokeniser has none
    assert "tokenizer.ggml.padding_token_id" not in settings
    assert settings["tokenizer.ggml.add_bos_token"] is False
    assert settings["tokenizer.chat_template"] == "{{ 1 }}"
    assert (found.model_name, found.notes) == ("mine", ())


def test_pieces_have_scores_types_and_a_space_before() -> None:
    tokenizer = pieces()
    settings = written(tokenizer).settings
    tokens, types = settings["tokenizer.ggml.tokens"], settings["tokenizer.ggml.token_type"]
    scores = dict(zip(tokens, settings["tokenizer.ggml.scores"], strict=True))
    assert settings["tokenizer.ggml.model"] == "llama"
    assert types[:3] == [UNKNOWN, CONTROL, CONTROL]
    assert types[3:259] == [BYTE] * 256
    assert set(types[259:]) == {NORMAL}
    assert [scores["".join(pair)] for pair in MERGES] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0]
    assert scores["a"] < -8.0
    ids = [settings[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "bos", "eos")]
    assert ids == [0, 1, 2]
    assert settings["tokenizer.ggml.add_bos_token"] is True
    assert settings["tokenizer.ggml.add_space_prefix"] is True
    assert "tokenizer.ggml.merges" not in settings


@pytest.mark.parametrize(
    ("normalizer", "scheme", "template", "prefix", "note"),
    [
        (PREPEND, None, None, True, ""),
        (normalizers.Replace(" ", "▁"), None, None, False, ""),
        (None, "never", None, False, ""),
        (None, "always", None, True, "text that begins with a space gets one more"),
        (None, "first", None, True, "or follows a control token, gets one more"),
        (None, "first", "{{ bos_token }}[{{ messages[0].content }}]", False, "plain-text prompts need a space"),
    ],
)
def test_spaces_before_text(normalizer: Any, scheme: str | None, template: Any, prefix: bool, note: str) -> None:
    pre = scheme and pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    found = written(pieces(normalizer=normalizer, pre=pre, chat_template=template))
    assert found.settings["tokenizer.ggml.add_space_prefix"] is prefix
    assert [note] == [note for one in found.notes if note in one] if note else not found.notes


def test_merging_by_score_is_merging_by_rank() -> None:
    """Against the tokenizers library, on a vocabulary with overlapping pieces and characters that are none."""
    tokenizer = pieces()._hf.backend_tokenizer
    content = json.loads(tokenizer.to_str())["model"]
    scores = piece_scores(content["vocab"], content["merges"])
    texts = [
        "the the",
        "a lather that went low",
        "allow",
        "é € owlow",
        "aaa",
        *(text for text in HARD_TEXTS if "<s>" not in text),
    ]
    assert merged_by_score("▁the▁low", scores) == ["▁the", "▁", "low"]
    assert merged_by_score("é", scores) == ["<0xC3>", "<0xA9>"]
    for text in texts:
        plain = "▁" + text.replace(" ", "▁")
        assert merged_by_score(plain, scores) == tokenizer.encode(text, add_special_tokens=False).tokens, text


def test_merges_that_no_scores_give_are_refused() -> None:
    """[a][bc] is no listed pair, but both are "abc", which is made of (ab, c)."""
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    content = json.loads(pieces(merges)._hf.backend_tokenizer.to_str())["model"]
    scores = piece_scores(content["vocab"], content["merges"])
    assert merged_by_score("abc", scores) == ["abc"]
    assert first_difference(["cab", "abc"], lambda text: ["a", "bc"] if text == "abc" else ["c", "ab"], scores) == "abc"
    with pytest.raises(UserError, match=r"llama\.cpp merges by scores: it would cut '.*abc.*' otherwise"):
        written(pieces(merges))


def test_each_split_is_known_by_its_parts() -> None:
    for split in SPLITS:
        whole = json.loads(pre_tokenizers.Sequence(list(split.parts)).__getstate__())
        assert split_name(whole, ignore_merges=split.ignore_merges) == split.name
        first = split_named(split.name)
        assert first is not None
        assert first.ignore_merges == split.ignore_merges
    alone = json.loads(SPLITS[0].parts[0].__getstate__())
    assert split_name({**alone, "trim_offsets": False}, ignore_merges=False) == "gpt-2"
    assert split_name({**alone, "add_prefix_space": True}, ignore_merges=False) is None
    assert split_name(alone, ignore_merges=True) is None
    assert split_name(None, ignore_merges=False) is None


def test_published_vocabularies_of_tiktoken_are_known() -> None:
    """The expression of GPT-2 as the installed tiktoken has it, through the code that reads it."""
    openai_public = pytest.importorskip("tiktoken_ext.openai_public")
    pattern = Regex(openai_public.r50k_pat_str)
    parts = [
        pre_tokenizers.Split(pattern, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    assert split_name(json.loads(pre_tokenizers.Sequence(parts).__getstate__()), ignore_merges=False) == "gpt-2"


def test_ends_of_a_completion_are_named(tmp_path: Path) -> None:
    backend = Backend.from_str(train_bpe(["some text"] * 4, 262)._hf.backend_tokenizer.to_str())
    ends = ["<|over|>", "<|stop|>", "<|halt|>"]
    template = "{% for m in messages %}{{ m.content }}{{ '<|halt|>' }}{% endfor %}"
    wrap_backend(backend, eos="<eos>", specials=ends, chat_template=template).save(tmp_path)
    ids = {name: backend.token_to_id(name) for name in ("<eos>", *ends)}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids["<eos>"], ids["<|stop|>"]]}))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    found = written(tokenizer)
    named = [found.settings[f"tokenizer.ggml.{key}_token_id"] for key in ("eos", "eot", "eom")]
    assert named == [ids["<eos>"], ids["<|halt|>"], ids["<|stop|>"]]  # the end of a turn before other stops
    assert found.notes == ()

    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ids.values())}))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    (note,) = written(tokenizer).notes
    assert "names 3 ends of generation: give <|stop|> to llama.cpp" in note


def test_template_and_system_prompt_of_a_recipe_are_written_with_their_end_of_turn() -> None:
    backend = Backend.from_str(train_bpe(["some text"] * 4, 262)._hf.backend_tokenizer.to_str())
    base = wrap_backend(backend, eos="<eos>", specials=["<|im_start|>", "<|im_end|>"])
    tokenizer, _ = with_chat(base, template="chatml", system_prompt="Answer in verse.")
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    settings = written(tokenizer).settings
    assert "<|im_start|>" in settings["tokenizer.chat_template"]
    assert "Answer in verse." in settings["tokenizer.chat_template"]
    assert settings["tokenizer.ggml.eos_token_id"] == backend.token_to_id("<|im_end|>")
    assert settings["tokenizer.ggml.eot_token_id"] == backend.token_to_id("<eos>")


def phi3(*, rstrip: bool = True, name: str = "<|end|>", lstrip: bool = False) -> HuggingFaceTokenizer:
    tokenizer = pieces()
    backend = tokenizer._hf.backend_tokenizer
    backend.add_special_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    backend.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    backend.add_special_tokens([AddedToken(name, rstrip=rstrip, lstrip=lstrip, normalized=False)])
    return HuggingFaceTokenizer(tokenizer._hf)


def test_markers_that_swallow_white_space_are_those_of_phi3() -> None:
    """llama.cpp has the markers of Phi-3, by the name of the model."""
    assert written(phi3()).model_name == "phi-3 mine"
    with pytest.raises(UserError, match="'</s>' swallows white space next to it"):
        written(phi3(rstrip=False))
    with pytest.raises(UserError, match="swallows white space"):
        written(phi3(lstrip=True))
    plain = vocabulary(pieces(), {}, rows=pieces().vocab_size, model_name="my-Phi3-run")
    assert plain.model_name == "model"  # else llama.cpp looks for markers that are not there


def changed(**parts: Any) -> HuggingFaceTokenizer:
    """Byte-level BPE with other parts."""
    backend = Backend.from_str(train_bpe(["some text"] * 4, 262)._hf.backend_tokenizer.to_str())
    for name, part in parts.items():
        setattr(backend, name, part)
    return wrap_backend(backend, eos="<eos>")


def unigram() -> HuggingFaceTokenizer:
    backend = Backend(models.Unigram())
    backend.train_from_iterator(["some text"] * 4, trainers.UnigramTrainer(vocab_size=20, special_tokens=["<eos>"]))
    return wrap_backend(backend, eos="<eos>")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: character_tokenizer("abc"), "of the kind WordLevel cannot be written as GGUF: only byte-level BPE"),
        (unigram, "of the kind Unigram cannot"),
        (lambda: changed(pre_tokenizer=pre_tokenizers.Whitespace()), r"is none that GGUF export knows .*gpt-2, smollm"),
        (lambda: changed(normalizer=normalizers.Lowercase()), r"changes text before it is cut \(Lowercase\)"),
        (lambda: pieces(bytes_=BYTES[:-1]), "lacks the piece <0xFF>"),
        (lambda: pieces(normalizer=normalizers.Lowercase()), "treats spaces in a way"),
        (lambda: pieces(normalizer=None, pre=pre_tokenizers.Metaspace("▁", split=True)), "treats spaces"),
    ],
)
def test_tokenisers_that_llama_cpp_does_not_have_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        written(make())


def test_ids_beyond_the_model_and_words_are_refused() -> None:
    tokenizer = changed()
    with pytest.raises(UserError, match="has ids up to 261, but the model has only 200 rows"):
        written(tokenizer, rows=200)
    tokenizer._hf.backend_tokenizer.add_tokens([AddedToken("whole", single_word=True)])
    with pytest.raises(UserError, match="'whole' is found as a whole word only"):
        written(HuggingFaceTokenizer(tokenizer._hf))


def test_nfc_is_allowed() -> None:
    assert written(changed(normalizer=normalizers.NFC())).settings["tokenizer.ggml.pre"] == "gpt-2"
