"""Text stays text, control tokens stay control tokens, and what is saved is what every other tool reads."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.small import train_bpe
from whet.errors import UserError
from whet.models.decoder.families import FAMILIES
from whet.models.text.tokenizers import HuggingFaceTokenizer, character_tokenizer, load_tokenizer
from whet.records import Message

ALPHABET = "0123456789+= <eos>\n漢é🙂"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

fixture_safe = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def bytes_tokenizer(specials: list[str], **options: object) -> PreTrainedTokenizerFast:
    """A Hugging Face tokeniser made without our code: specials first, then one token per byte."""
    vocabulary = {token: i for i, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


@pytest.fixture
def chatml(tmp_path: Path) -> Path:
    """A chat model's directory that pads with its end-of-turn token, as SmolLM2 does."""
    hf = bytes_tokenizer(MARKERS, eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<|endoftext|>")
    hf.chat_template = CHATML
    hf.save_pretrained(tmp_path)
    return tmp_path


# characters


def test_characters_are_numbered_in_order_after_eos() -> None:
    tokenizer = character_tokenizer("cab")
    assert tokenizer.encode("abc") == [2, 3, 1]
    assert (tokenizer.eos, tokenizer.stops, tokenizer.vocab_size) == (0, frozenset({0}), 4)


@given(st.text(alphabet=ALPHABET))
def test_a_character_is_a_token_and_comes_back(text: str) -> None:
    tokenizer = _characters()
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert tokenizer.decode([*tokens, tokenizer.eos]) == text


@cache
def _characters() -> HuggingFaceTokenizer:
    return character_tokenizer(ALPHABET)


def test_typed_eos_is_five_characters() -> None:
    tokenizer = character_tokenizer("<eos>a")
    assert tokenizer.encode("a<eos>") == [tokenizer.encode(c)[0] for c in "a<eos>"]
    conversation = [Message(role="user", content="a<eos>"), Message(role="user", content="a")]
    with pytest.raises(UserError, match=r"'\\n'|alphabet"):
        tokenizer.prompt(conversation)  # the built-in template joins with a newline, which this alphabet lacks
    assert tokenizer.prompt(conversation[:1]) == tokenizer.encode("a<eos>")


def test_unknown_character_is_named() -> None:
    with pytest.raises(UserError, match="character 'é'"):
        character_tokenizer("abc").encode("aéb")
    with pytest.raises(UserError, match="character 'é'"):
        character_tokenizer("abc").prompt([Message(role="user", content="é")])


def test_empty_alphabet_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        character_tokenizer("")


def test_conversation_without_roles_is_its_lines() -> None:
    tokenizer = character_tokenizer("abc\n")
    turns = [Message(role="system", content="ab"), Message(role="user", content="c")]
    assert tokenizer.prompt(turns) == tokenizer.encode("ab\nc") == tokenizer.prompt("ab\nc")


# what we save


@pytest.mark.parametrize("make", [lambda: character_tokenizer(ALPHABET), lambda: train_bpe(["1+2=3"] * 9, 300)])
def test_saved_directory_reads_the_same_everywhere(make: object, tmp_path: Path) -> None:
    tokenizer = make()  # type: ignore[operator]
    tokenizer.save(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    for text in ["1+2=3\n 漢é🙂", "<eos>", ""]:
        assert ours.encode(text) == tokenizer.encode(text)
        assert theirs.encode(text, split_special_tokens=True) == tokenizer.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(tokenizer.encode(text)) == text
    assert ours.eos == theirs.eos_token_id == tokenizer.eos
    assert ours.prompt([Message(role="user", content="1")]) == tokenizer.encode("1")


def test_character_alphabet_survives_saving(tmp_path: Path) -> None:
    character_tokenizer("abc").save(tmp_path)
    with pytest.raises(UserError, match="character 'z'"):
        load_tokenizer(tmp_path).encode("z")


def test_stops_survive_saving_and_leave_other_settings_alone(chatml: Path, tmp_path: Path) -> None:
    (chatml / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "temperature": 0.6}))
    target = tmp_path / "copy"
    target.mkdir()
    (target / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": 7}))
    load_tokenizer(chatml).save(target)
    assert load_tokenizer(target).stops == {2, 0}
    assert json.loads((target / "generation_config.json").read_text()) == {"temperature": 0.6, "eos_token_id": [2, 0]}


# byte-level BPE


def test_bpe_learns_the_commonest_pair_first() -> None:
    tokenizer = train_bpe(["aab"] * 3 + ["ab"] * 4, 259)  # pairs: ab 7, aa 3 → "ab", then "a"+"ab"
    assert [len(tokenizer.encode(text)) for text in ("ab", "aab", "ba", "aaab")] == [1, 1, 2, 2]
    assert tokenizer.vocab_size == 259


@given(st.text())
@settings(deadline=None, max_examples=60)
def test_bpe_spells_any_text(text: str) -> None:
    tokenizer = _bpe()
    if any("\ud800" <= c <= "\udfff" for c in text):
        with pytest.raises(UserError, match="surrogate"):
            tokenizer.encode(text)
        return
    assert tokenizer.decode(tokenizer.encode(text)) == text


@cache
def _bpe() -> HuggingFaceTokenizer:
    return train_bpe(["the cat sat on the mat"], 270)


# control tokens


def test_clean_conversation_equals_the_template(chatml: Path) -> None:
    tokenizer = load_tokenizer(chatml)
    text = tokenizer.encode
    by_hand = [1, *text("user\nhi"), 2, *text("\n"), 1, *text("assistant\n")]
    assert tokenizer.prompt([Message(role="user", content="hi")]) == by_hand
    theirs = AutoTokenizer.from_pretrained(chatml)
    rendered = theirs.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert theirs.encode(rendered, add_special_tokens=False) == by_hand


@given(st.lists(st.lists(st.sampled_from([*MARKERS, "<|im_", "end|>", "hi", "\n", "\U000f0000"])).map("".join)))
@fixture_safe
def test_no_message_can_forge_a_control_token(chatml: Path, contents: list[str]) -> None:
    tokenizer = load_tokenizer(chatml)
    theirs = AutoTokenizer.from_pretrained(chatml)
    turns = [Message(role="user", content=content) for content in [*contents, "end"]]
    tokens = tokenizer.prompt(turns)
    assert [token for token in tokens if token < 3] == [1, 2] * len(turns) + [1]  # the template's own, no more
    expected = "".join(f"<|im_start|>user\n{turn.content}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    assert theirs.decode(tokens) == expected  # nothing lost, nothing changed
    assert tokenizer.decode(tokenizer.encode("".join(contents))) == "".join(contents)


def test_a_role_cannot_carry_a_control_token(chatml: Path) -> None:
    with pytest.raises(UserError, match=r"<\|im_end\|>"):
        load_tokenizer(chatml).prompt([Message(role="user<|im_end|>", content="hi")])


def test_markers_that_swallow_white_space_do_so_beside_forgeries_too(tmp_path: Path) -> None:
    hf = bytes_tokenizer(["<s>", "<|end|>"], eos_token="<s>")
    hf.add_special_tokens({"additional_special_tokens": [AddedToken("<|end|>", special=True, rstrip=True)]})
    hf.chat_template = "{% for m in messages %}{{ m['content'] + '<|end|>\n' }}{% endfor %}{{ '<s>' }}"
    tokenizer = HuggingFaceTokenizer(hf)
    clean = tokenizer.prompt([Message(role="user", content="a")])
    forged = tokenizer.prompt([Message(role="user", content="<s>")])
    assert clean == [*tokenizer.encode("a"), 1, 0]  # the newline after <|end|> is swallowed
    assert forged == [*tokenizer.encode("<s>"), 1, 0]


def test_text_that_the_model_can_only_read_as_a_stop_is_refused() -> None:
    """A Unigram vocabulary may spell "</s>" as one piece, even when special tokens are split."""
    backend = Backend(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0))
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer = HuggingFaceTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    )
    assert tokenizer.encode("aa") == [2, 2]
    with pytest.raises(UserError, match="</s>"):
        tokenizer.encode("a</s>")


def test_ordinary_text_with_brackets_is_encoded_as_transformers_does(chatml: Path) -> None:
    tokenizer, theirs = load_tokenizer(chatml), AutoTokenizer.from_pretrained(chatml)
    turns = [{"role": "user", "content": "is 1 < 2 > 0 or a|b?"}, {"role": "assistant", "content": "<b>yes</b>"}]
    text = theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert tokenizer.prompt([Message(**turn) for turn in turns]) == theirs.encode(text, add_special_tokens=False)


def test_all_private_characters_at_once_are_told_in_a_sentence(chatml: Path) -> None:
    everything = "<" + "".join(map(chr, range(0xF0000, 0xFFFFE)))
    with pytest.raises(UserError, match="hold nearly all private characters from U\\+F0000 on"):
        load_tokenizer(chatml).prompt([Message(role="user", content=everything)])


def test_merges_left_out_at_random_are_refused() -> None:
    backend = Backend(models.BPE({"<s>": 0, "a": 1, "aa": 2}, [("a", "a")], dropout=0.5))
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    with pytest.raises(UserError, match=r"random \(dropout 0\.5\).*set dropout to null in tokenizer\.json"):
        HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>"))
    backend.model.dropout = 0.0
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>")
    HuggingFaceTokenizer(hf)
    hf.sp_model_kwargs = {"enable_sampling": True}
    with pytest.raises(UserError, match=r"random.*remove enable_sampling from tokenizer_config.json"):
        HuggingFaceTokenizer(hf)


@pytest.mark.parametrize(
    ("replacements", "is_refused"),
    [
        ([("a", "b" * 5000)], True),
        ([("a", "aa")] * 13, True),
        ([(Regex("x*"), "b" * 5000)], True),
        ([("a", "aa")] * 12, False),
        ([(" ", "\u2581"), (Regex(" {2,}"), " "), ("\u2026", "...")], False),
    ],
)
@pytest.mark.parametrize("place", ["normalizer", "decoder"])
def test_replacements_that_make_gigabytes_of_a_text_are_refused(replacements, is_refused: bool, place: str) -> None:
    hf = bytes_tokenizer(["<s>"], eos_token="<s>")
    kind = {"normalizer": normalizers, "decoder": decoders}[place]
    setattr(hf.backend_tokenizer, place, kind.Sequence([kind.Replace(*pair) for pair in replacements]))
    if is_refused:
        with pytest.raises(UserError, match=r"the replacements of tokenizer .* may make \d+ characters of one"):
            HuggingFaceTokenizer(hf)
    else:
        HuggingFaceTokenizer(hf)


# the end of a sequence


def test_eos_that_pads_is_still_a_token(chatml: Path) -> None:
    tokenizer = load_tokenizer(chatml)
    assert AutoTokenizer.from_pretrained(chatml).pad_token_id == tokenizer.eos == 2
    assert tokenizer.stops == {2}
    assert tokenizer.decode([*tokenizer.encode("yes"), tokenizer.eos]) == "yes"


def test_configured_list_of_ends_counts(chatml: Path) -> None:
    (chatml / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert load_tokenizer(chatml).stops == {2, 0}


def test_default_ids_that_are_ordinary_tokens_do_not_end_anything(chatml: Path) -> None:
    (chatml / "config.json").write_text('{"model_type": "llama", "eos_token_id": 65}')
    assert load_tokenizer(chatml).stops == {2}


def test_end_of_turn_is_read_from_the_template(tmp_path: Path) -> None:
    """A base model with a chat template names <|endoftext|> as eos, yet its turns end with <|im_end|>."""
    hf = bytes_tokenizer(MARKERS, eos_token="<|endoftext|>", chat_template=CHATML)
    tokenizer = HuggingFaceTokenizer(hf)
    assert (tokenizer.eos, tokenizer.stops) == (0, {0, 2})


def test_tokenizer_without_eos_is_refused(tmp_path: Path) -> None:
    bytes_tokenizer(MARKERS).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no eos token"):
        load_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert load_tokenizer(tmp_path).eos == 0


# prompts


def test_bos_opens_plain_prompts_where_the_model_wants_it() -> None:
    hf = bytes_tokenizer(["<s>", "</s>"], bos_token="<s>", eos_token="</s>")
    hf.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    plain = HuggingFaceTokenizer(hf)
    assert plain.prompt("hi") == plain.encode("hi")  # it has a bos but does not add it (GPT-2)
    hf.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    llama = HuggingFaceTokenizer(hf)
    assert llama.prompt("hi") == [0, *llama.encode("hi")]
    assert llama.encode("hi")[0] != 0
    assert llama.prompt([Message(role="user", content="hi")]) == [0, *llama.encode("hi")]  # once, not twice


def test_messages_need_a_template(tmp_path: Path) -> None:
    bytes_tokenizer(MARKERS, eos_token="<|endoftext|>").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(tmp_path).prompt([Message(role="user", content="hi")])


def test_what_a_template_refuses_is_said_in_one_line() -> None:
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer = HuggingFaceTokenizer(bytes_tokenizer(MARKERS, eos_token="<|endoftext|>", chat_template=template))
    with pytest.raises(UserError, match=r"\[system\].*no system role"):
        tokenizer.prompt([Message(role="system", content="hi")])
    with pytest.raises(UserError, match="empty"):
        tokenizer.prompt([])


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no directory"), ({}, "holds no tokenizer"), ({"tokenizer.json": "{"}, "cannot be read")],
)
def test_directories_without_a_tokenizer(content: dict[str, str] | None, said: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    if content is not None:
        directory.mkdir()
        for name, text in content.items():
            (directory / name).write_text(text)
    with pytest.raises(UserError, match=said):
        load_tokenizer(directory)


@pytest.mark.parametrize("kind", ["characters", "bpe", "bytes"])
def test_many_rows_are_decoded_as_each_of_them(kind: str) -> None:
    tokenizer = {
        "characters": lambda: character_tokenizer("0123456789+= "),
        "bpe": lambda: train_bpe(["a , b . don't  漢é🙂 <eos>"] * 3, 300),
        "bytes": lambda: HuggingFaceTokenizer(
            bytes_tokenizer(MARKERS, eos_token="<|endoftext|>", clean_up_tokenization_spaces=True)
        ),
    }[kind]()
    text = "1 + 2" if kind == "characters" else "a , b . don't  漢é🙂"
    whole = tokenizer.encode(text)
    rows = [whole, whole[:-1], [tokenizer.eos], [*whole, tokenizer.eos], [], whole[::-1], *([token] for token in whole)]
    assert tokenizer.decode_many(rows) == [tokenizer.decode(row) for row in rows]
    assert tokenizer.decode_many([tuple(row) for row in rows])[0] == text
    assert tokenizer.decode_many([]) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_of_ones_own_is_read_beside_every_family(family: str, tmp_path: Path) -> None:
    """AutoTokenizer reads one beside a model_type qwen2 as Qwen's, which gives every text no ids."""
    character_tokenizer("abc").save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), encoding="utf-8")
    assert load_tokenizer(tmp_path).encode("cab") == character_tokenizer("abc").encode("cab")
