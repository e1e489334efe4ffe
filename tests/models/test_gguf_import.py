"""A converted GGUF file is the model and the tokeniser that it was made from."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from whet.errors import UserError
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Message

pytest.importorskip("gguf")
from tests.models.gguf_fixture import tiny_llama, write_gguf
from whet.models.download.gguf_import import convert_gguf

PROMPT = torch.tensor([[1, 70, 71, 259, 80, 2, 90, 91, 92, 120]])


@pytest.mark.parametrize("tied", [True, False])
def test_converted_gguf_is_the_original_model(tied: bool, tmp_path: Path) -> None:
    original = tiny_llama(tied=tied)
    write_gguf(tmp_path / "tiny.gguf", original)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", dtype=torch.float32)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(converted(PROMPT).logits, original(PROMPT).logits, atol=1e-5, rtol=1e-5)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 50000.0, tied)


def test_without_undoing_the_permutation_the_model_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the test above would see it."""
    original = tiny_llama()
    write_gguf(tmp_path / "tiny.gguf", original)
    monkeypatch.setattr("whet.models.download.gguf_import._split_halves", lambda weight, *, heads: weight)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", dtype=torch.float32)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        assert (converted(PROMPT).logits - original(PROMPT).logits).abs().max() > 0.1


def test_quantised_weights_are_expanded(tmp_path: Path) -> None:
    original = tiny_llama()
    write_gguf(tmp_path / "tiny.gguf", original, quantised=True)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", dtype=torch.float32)
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).state_dict()
    for name, weight in original.state_dict().items():
        # 8 bits in blocks of 32: half a step of the block's largest weight over 127, plus the step's own rounding
        assert (state[name] - weight).abs().max() <= weight.abs().max() / 127 * 0.51, name


def test_converted_tokenizer_knows_its_markers(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    tokenizer, theirs = load_tokenizer(tmp_path / "hf"), AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert (tokenizer.eos, tokenizer.stops, tokenizer.vocab_size) == (2, {2}, 260)
    assert tokenizer.encode("hi") == [259]
    assert len(tokenizer.encode("1234")) == 4
    tokens = tokenizer.prompt([Message(role="user", content="hi")])
    assert theirs.decode(tokens) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert [token for token in tokens if token < 3] == [1, 2, 1]


def test_unknown_gguf_settings_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "scaled.gguf", tiny_llama(), llama__rope__scaling__factor=8.0)
    with pytest.raises(UserError, match=r"rope\.scaling\.factor is not known"):
        convert_gguf(tmp_path / "scaled.gguf", tmp_path / "hf")
    write_gguf(tmp_path / "split.gguf", tiny_llama(), split="deepseek-llm")
    with pytest.raises(UserError, match="deepseek-llm"):
        convert_gguf(tmp_path / "split.gguf", tmp_path / "hf")
    (tmp_path / "no.gguf").write_bytes(b"not a model at all, only some text")
    with pytest.raises(UserError, match=r"no\.gguf"):
        convert_gguf(tmp_path / "no.gguf", tmp_path / "hf")


def test_text_that_the_file_defines_as_one_token_is_not_split(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), whole="1 + 1")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    tokenizer = load_tokenizer(tmp_path / "hf")
    assert tokenizer.encode("1 + 1") == [258]
    assert tokenizer.decode([258]) == "1 + 1"  # text, no control token
    assert len(tokenizer.encode("1 + 2")) == 5


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("llama__logit_scale", "llama.logit_scale is not known here and may change the numbers"),
        ("llama__attention__scale", "llama.attention.scale is not known"),
        ("llama__attention__value_length", "values unlike keys"),
    ],
)
def test_settings_that_may_change_the_numbers_are_refused(setting: str, said: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), **{setting: 8.0})
    with pytest.raises(UserError, match=said):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")


def test_unsound_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """Cut anywhere, with counts that nothing could hold, with bytes changed: a model or a sentence, nothing else."""
    write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    sound = (tmp_path / "tiny.gguf").read_bytes()
    dice = random.Random(0)
    spoilt = [sound[: len(sound) * share // 8] for share in range(8)]
    for place in (8, 16):  # how many tensors and how many settings there are
        spoilt += [sound[:place] + count.to_bytes(8, "little") + sound[place + 8 :] for count in (2**62, 2**33, 0, 99)]
    for _ in range(12):
        changed = bytearray(sound)
        for _ in range(4):
            changed[dice.randrange(4000)] = dice.randrange(256)
        spoilt.append(bytes(changed))
    refusals = 0
    for number, data in enumerate(spoilt):
        (tmp_path / "bad.gguf").write_bytes(data)
        try:
            convert_gguf(tmp_path / "bad.gguf", tmp_path / f"hf{number}")
        except UserError:
            refusals += 1
    assert refusals >= 12
