"""Exported files in llama.cpp: the same ids, logits and greedy text as here."""

import os
import unicodedata
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import whet
from tests.hard_texts import HARD_TEXTS
from tests.models.hf_models import CASES, build
from tests.models.test_gguf_vocabulary import phi3, pieces
from tests.with_llama_cpp.loaded import Loaded
from whet.errors import UserError
from whet.models.download.model_hub import resolve_model
from whet.models.export.gguf_file import export_gguf
from whet.models.load import load_model, new_model
from whet.models.text.byte_level_splits import SPLITS
from whet.models.text.tokenizers import load_tokenizer, wrap_backend
from whet.records import Message

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-llama-cpp)")
pytestmark = pytest.mark.llama_cpp

EOS = "<|endoftext|>"
STORIES = Path(__file__).resolve().parents[2] / "../shared/data/models/stories260K-hf"
GIVEN = os.environ.get("WHET_TEST_MODELS", "").split(os.pathsep)  # directories of further models
COUNT = 48
PROMPTS = (
    "Once upon a time, there was a little girl named Lily",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8,",
    "Voilà, la réponse à “où est le café ?” : ",
    "Привет! Меня зовут",
    "你好，请用一句话介绍",
)
CHATS = (
    [Message(role="user", content="What is the capital of France?")],
    [Message(role="system", content="Be brief."), Message(role="user", content="Überrasche mich: was ist 7·8? 🤔")],
    [
        Message(role="user", content="Write a haiku about rain."),
        Message(role="assistant", content="Soft rain on the roof"),
        Message(role="user", content="Another one, s'il te plaît."),
    ],
)


def real_models():
    """Stories260K, SmolLM2 if it is pulled, and the directories that are given."""
    try:
        smollm = resolve_model("smollm2-135m-instruct")
    except UserError:
        smollm = None
    found = [path for path in (STORIES, smollm, *map(Path, filter(None, GIVEN))) if path is not None and path.is_dir()]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="no real model is on this machine"))]


@pytest.fixture(scope="module", params=real_models(), ids=lambda path: getattr(path, "name", "none"))
def real(request, tmp_path_factory):
    """A real model here and in llama.cpp, both in fp32."""
    file = tmp_path_factory.mktemp("real") / "model.gguf"
    export_gguf(str(request.param), file, type_="f32")
    loaded = Loaded(file, context=512)
    yield whet.load(request.param), load_tokenizer(request.param), loaded
    file.unlink()


def test_real_tokenisers_give_the_same_ids(real):
    _, tokenizer, loaded = real
    for text in HARD_TEXTS:
        # llama.cpp has no Unicode normalisation (NFC), which Qwen's tokeniser begins with.
        whole = unicodedata.normalize("NFC", text)
        assert loaded.encode(whole) == tokenizer.encode(whole), text
    assert loaded.adds_bos() == (tokenizer.prompt("a") != tokenizer.encode("a"))
    assert loaded.encode("a b", bos=True) == tokenizer.prompt("a b")
    assert all(loaded.is_end(end) for end in tokenizer.stops)


def test_real_models_write_the_same_text(real):
    model, tokenizer, loaded = real
    prompts = list(PROMPTS)
    theirs = [loaded.encode(text, bos=True) for text in PROMPTS]
    if tokenizer.has_chat_template:
        assert loaded.template() == tokenizer.chat.source()
        prompts += [[asdict(message) for message in chat] for chat in CHATS]
        theirs += [loaded.encode(tokenizer.chat.render(chat), special=True) for chat in CHATS]
    for prompt, ids in zip(prompts, theirs, strict=True):
        ((ours,),) = model.generate([prompt], max_tokens=COUNT, temperature=0.0, raw=True)
        assert loaded.greedy(ids, COUNT) == list(ours.tokens), prompt
        assert len(ours.tokens) == COUNT or ours.tokens[-1] in tokenizer.stops


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split.name}-{len(split.parts)}")
def test_every_known_split_gives_the_same_ids(split, tmp_path):
    """A vocabulary that is trained with each pre-tokeniser, so that another cut gives other ids."""
    loaded, tokenizer = export_and_load(trained(split), tmp_path)
    for text in HARD_TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text), text


def test_added_tokens_are_found_in_text_and_control_tokens_are_not(tmp_path):
    tokenizer = trained(SPLITS[0], added=["<tool>", "two words"], specials=["<|im_end|>", "<|turn|>"])
    loaded, tokenizer = export_and_load(tokenizer, tmp_path)
    text = "a <tool>two words b<|im_end|> <|turn|>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.encode(text, special=True) == tokenizer._hf.encode(text, add_special_tokens=False)


def test_each_end_of_a_completion_ends_generation(tmp_path):
    """Ids of generation_config.json that llama.cpp could not know by their names."""
    template = "{% for m in messages %}{{ m.content }}{{ '<|over|>' }}{% endfor %}"
    tokenizer = trained(SPLITS[0], specials=["<|over|>", "<|stop|>", "<|go|>"], chat_template=template)
    loaded, tokenizer = export_and_load(tokenizer, tmp_path, ends=["<|stop|>"])
    ids = {name: tokenizer.chat.control[name] for name in ("<|over|>", "<|stop|>", "<|go|>")}
    assert tokenizer.stops == {tokenizer.eos, ids["<|over|>"], ids["<|stop|>"]}
    assert [loaded.is_end(ids[name]) for name in ids] == [True, True, False]


def ids_of(tokenizer, text):
    """As transformers encodes a rendered chat."""
    return tokenizer._hf.encode(text, add_special_tokens=False)


def test_markers_of_phi3_swallow_white_space(tmp_path):
    loaded, tokenizer = export_and_load(phi3(), tmp_path)
    for text in ("a<|end|>\n the", "low <|end|>  \n\n<|endoftext|> a", "</s> the"):
        assert loaded.encode(text, special=True) == ids_of(tokenizer, text)
    assert loaded.encode("<|endoftext|> a", special=True) != loaded.encode("<|endoftext|>a", special=True)


@pytest.mark.parametrize(
    ("scheme", "is_chat"), [("always", False), ("first", False), ("first", True), ("never", False)]
)
def test_spaces_before_text_are_those_of_metaspace(scheme, is_chat, tmp_path):
    """But for the texts that a note of the export names."""
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}" if is_chat else None
    pre = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    made = pieces(normalizer=None, pre=pre, chat_template=template)
    loaded, tokenizer = export_and_load(made, tmp_path)
    texts = ["the low", "a the  that é\nlow", "the</s>low"][: 3 if scheme == "always" else 2]
    if is_chat:
        texts = ["<s>the low</s>a the</s>", "<s> the low</s>"]
    if scheme == "never":
        texts += [" the", "the</s> low"]
    for text in texts:
        assert loaded.encode(text, special=True) == ids_of(tokenizer, text), text


FAMILIES = [name for name in CASES if name.partition("-")[0] in ("gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3")]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3-biases"])
def test_every_family_has_the_same_logits(name, tmp_path):
    family, settings = CASES[name]
    tokenizer = trained(SPLITS[0], size=300)
    padded = {"vocab_size": tokenizer.vocab_size + 5}  # rows of embeddings that no token has
    build(family, settings | padded).save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    export_gguf(str(tmp_path / "model"), tmp_path / "model.gguf", type_="f32")
    tokens = torch.randint(3, 250, (40,), generator=torch.Generator().manual_seed(0))
    model = load_model(tmp_path / "model")
    with torch.no_grad():
        ours = model(tokens[None], torch.tensor([len(tokens)]))[0].numpy()
    theirs = Loaded(tmp_path / "model.gguf", context=64).logits(tokens.tolist())
    # ggml computes GELU by a table of fp16 numbers.
    np.testing.assert_allclose(theirs, ours, atol=2e-2 if name.startswith("gpt2") else 2e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_smaller_types_load_and_are_near(kind, tmp_path):
    tokenizer = trained(SPLITS[0], size=300)
    saved(tokenizer, tmp_path / "model", width=64)
    tokens = list(range(3, 40))
    exact, near = (
        Loaded(export_gguf(str(tmp_path / "model"), tmp_path / f"{one}.gguf", type_=one).path, context=64)
        for one in ("f32", kind)
    )
    off = np.abs(exact.logits(tokens) - near.logits(tokens)).max()
    assert 0 < off < 0.05 * np.abs(exact.logits(tokens)).max()


def trained(split, *, size=600, added=(), specials=(), **settings):
    """Byte-level BPE with a pre-tokeniser, trained on the hard texts."""
    backend = Tokenizer(models.BPE(ignore_merges=split.ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(split.parts))
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(HARD_TEXTS * 3, trainer)
    backend.add_tokens(list(added))
    return wrap_backend(backend, eos=EOS, specials=specials, **settings)


def saved(tokenizer, directory, *, width=32, family="llama"):
    """A small random model with a tokeniser."""
    model = new_model(
        family, vocab_size=tokenizer.vocab_size, layers=2, heads=4, width=width, context=128, seed=0, eos=tokenizer.eos
    )
    directory.mkdir()
    model.save(directory)
    tokenizer.save(directory)
    return model


def export_and_load(tokenizer, directory, *, ends=()):
    """A model with this tokeniser in llama.cpp, and the tokeniser as it is loaded here."""
    saved(tokenizer, directory / "model")
    if ends:
        ids = [tokenizer.eos, *(tokenizer.chat.control[end] for end in ends)]
        (directory / "model" / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}')
    written = export_gguf(str(directory / "model"), directory / "model.gguf")
    return Loaded(written.path, context=64), load_tokenizer(directory / "model")
