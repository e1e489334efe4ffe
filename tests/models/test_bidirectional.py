"""The bidirectional decoder: what its tokens see, its mask token, its files, and who refuses them."""

import json

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models

from whet.errors import UserError
from whet.models.load import is_bidirectional, load_model, model_summary, new_model
from whet.models.masked_logprobs import mask_id, masked_likelihoods, masked_logprobs
from whet.models.text.mask_token import with_mask
from whet.models.text.tokenizers import EOS, character_tokenizer, load_tokenizer, wrap_backend
from whet.models.text.trained_bpe import train_bpe

FAMILIES = ["gpt2", "llama", "qwen3", "olmo2"]
VOCAB, CONTEXT = 12, 8


def bidirectional(family="llama", *, vocab=VOCAB, sharp=8.0, **changes):
    shape = {"layers": 2, "heads": 4, "width": 32, "context": CONTEXT, "seed": 0, **changes}
    model = new_model(family, vocab_size=vocab, causal=False, **shape)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(sharp)
    return model


@pytest.fixture
def tokens():
    return torch.randint(0, VOCAB - 1, (2, CONTEXT), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_sees_every_other(family, tokens):
    model, lengths = bidirectional(family), torch.tensor([CONTEXT, CONTEXT])
    before = model(tokens, lengths)
    for place in range(CONTEXT):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % (VOCAB - 1)
        moved = (model(changed, lengths) - before).detach().abs().amax(dim=-1)
        assert float(moved.min()) > 1e-4  # the first and the last place alike


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_not_seen(family, tokens):
    model = bidirectional(family)
    together = model(tokens, torch.tensor([CONTEXT, 5]))
    alone = model(tokens[1:, :5], torch.tensor([5]))
    assert torch.allclose(together[1, :5], alone[0], atol=1e-4)
    padded = tokens.clone()
    padded[1, 5:] = 3
    assert torch.equal(model(padded, torch.tensor([CONTEXT, 5]))[1, :5], together[1, :5])


def test_log_probs_are_read_at_the_token_itself_and_give_the_mask_nothing(tokens):
    model, lengths = bidirectional(), torch.tensor([CONTEXT, CONTEXT])
    chosen = torch.zeros_like(tokens, dtype=torch.bool)
    chosen[0, [0, 3]] = chosen[1, 7] = True  # the first token too
    shown = tokens.masked_fill(chosen, mask_id(model))
    plain = model(shown, lengths)[..., : VOCAB - 1].log_softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]
    found = masked_logprobs(model, shown, lengths, tokens, chosen)
    assert torch.allclose(found, torch.where(chosen, plain, 0.0), atol=1e-5)
    sums, hits = masked_likelihoods(model, shown, lengths, tokens, chosen)
    assert torch.allclose(sums.float(), found.sum(dim=1), atol=1e-5)
    best = model(shown, lengths)[..., : VOCAB - 1].argmax(dim=-1) == tokens
    assert hits.tolist() == (best & chosen).sum(dim=1).tolist()


def test_the_gradient_is_that_of_plain_autograd(tokens):
    model, lengths = bidirectional(sharp=3.0), torch.tensor([CONTEXT, CONTEXT])
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    shown = tokens.masked_fill(chosen, mask_id(model))
    plain = model(shown, lengths)[..., : VOCAB - 1].log_softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]
    names, weights = zip(*model.named_parameters(), strict=True)
    expected = torch.autograd.grad(plain[chosen].sum(), weights)
    found = torch.autograd.grad(masked_logprobs(model, shown, lengths, tokens, chosen).sum(), weights)
    for name, one, other in zip(names, found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4, rtol=1e-3), name
    assert float(found[names.index("lm_head.weight")][VOCAB - 1].abs().max()) == 0  # of the mask


def test_a_hidden_token_does_not_leak(tokens):
    model, lengths = bidirectional(), torch.tensor([CONTEXT, CONTEXT])
    chosen = torch.zeros_like(tokens, dtype=torch.bool)
    chosen[:, 2] = True
    shown = tokens.masked_fill(chosen, mask_id(model))
    every = torch.stack(
        [
            masked_logprobs(model, shown, lengths, torch.full_like(tokens, token), chosen)[:, 2]
            for token in range(VOCAB - 1)
        ]
    )
    assert torch.allclose(every.exp().sum(dim=0), torch.ones(2), atol=1e-5)  # one distribution, whatever stands there


def test_nothing_chosen_is_nothing_learned(tokens):
    model, lengths = bidirectional(), torch.tensor([CONTEXT, CONTEXT])
    nothing = torch.zeros_like(tokens, dtype=torch.bool)
    assert not bool(masked_logprobs(model, tokens, lengths, tokens, nothing).any())
    assert masked_likelihoods(model, tokens, lengths, tokens, nothing)[0].tolist() == [0, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded(family, tokens, tmp_path):
    model, lengths = bidirectional(family), torch.tensor([CONTEXT, CONTEXT])
    model.save(tmp_path)
    loaded = load_model(tmp_path, bidirectional=True)
    assert is_bidirectional(loaded)
    assert not is_bidirectional(new_model(family, vocab_size=5, layers=1, heads=1, width=8, context=4, seed=0))
    assert torch.equal(loaded.hidden(tokens, lengths), model.hidden(tokens, lengths))
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["mask_token_id"]) == (f"bidirectional_{family}", VOCAB - 1)
    summary = model_summary(tmp_path)
    assert summary["implementation"] == "decoder"
    assert not [key for key in summary if key.startswith("kv_")]  # every pass reads the whole window


def test_nothing_takes_it_for_a_causal_model(tmp_path):
    from transformers import AutoModelForCausalLM

    model = bidirectional()
    model.save(tmp_path)
    with pytest.raises(ValueError, match="bidirectional_llama"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(UserError, match="is a bidirectional model, which predicts masked tokens"):
        load_model(tmp_path)
    assert is_bidirectional(load_model(tmp_path, bidirectional=None))
    with pytest.raises(UserError, match="continues no text"):
        model.begin(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2]), room=1)
    from whet.models.layers.packing import pack

    with pytest.raises(UserError, match="continues no text"):
        model.hidden_packed(pack(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[False, True, True]])))


def test_a_causal_model_is_no_bidirectional_one(tmp_path):
    new_model("gpt2", vocab_size=5, layers=1, heads=1, width=8, context=4, seed=0).save(tmp_path)
    with pytest.raises(UserError, match="is a causal model, whose tokens see none after them"):
        load_model(tmp_path, bidirectional=True)


def test_a_mask_that_is_not_the_last_id_is_refused(tmp_path):
    bidirectional().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mask_token_id": 3}))
    with pytest.raises(UserError, match=r"'mask_token_id' is 3: expected the last id, 11"):
        load_model(tmp_path, bidirectional=True)


def test_causal_models_are_as_before():
    shape = {"vocab_size": VOCAB, "layers": 2, "heads": 4, "width": 32, "context": CONTEXT, "seed": 0}
    tokens, lengths = torch.randint(0, VOCAB, (1, CONTEXT)), torch.tensor([CONTEXT])
    model = new_model("llama", **shape)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % VOCAB
    assert torch.equal(model(tokens, lengths)[0, :-1], model(changed, lengths)[0, :-1])


def trained(text="to be or not to be <mask> "):
    return train_bpe([text] * 4, 262)


@pytest.mark.parametrize("base", [character_tokenizer("<>abkmst "), trained()], ids=["characters", "bpe"])
def test_text_never_becomes_the_mask(base, tmp_path):
    tokenizer = with_mask(base)
    mask = tokenizer.vocab_size - 1
    assert (mask, tokenizer.eos, tokenizer.stops) == (base.vocab_size, base.eos, base.stops)
    for text in ("<mask>", "a<mask>b", "<mask><mask>", "<|mask|>" if base.vocab_size > 200 else "mask"):
        assert mask not in tokenizer.encode(text)
        assert tokenizer.encode(text) == base.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([*base.encode("ab"), mask]) == "ab"
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.vocab_size, again.encode("a<mask>b")) == (mask + 1, base.encode("a<mask>b"))


def words(*names):
    """A tokeniser of whole words."""
    vocabulary = {name: place for place, name in enumerate([EOS, "?", *names])}
    return wrap_backend(Backend(models.WordLevel(vocabulary, unk_token="?")), eos=EOS)


def test_a_tokeniser_that_has_such_a_word_gets_another_name():
    base = words("<mask>")
    assert base.encode("<mask>") == [2]  # a word like any other
    assert with_mask(base).vocab_size == 4
    assert with_mask(base).encode("<mask>") == [2]
    with pytest.raises(UserError, match=r"has the tokens <mask> and <\|mask\|> already"):
        with_mask(words("<mask>", "<|mask|>"))


def test_the_files_of_a_bidirectional_model_hold_a_tokeniser(tmp_path, caplog):
    tokenizer = with_mask(character_tokenizer("abc"))
    model = new_model(
        "llama", vocab_size=tokenizer.vocab_size, layers=1, heads=1, width=8, context=4, seed=0, causal=False
    )
    model.save(tmp_path)
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).encode("cab") == [3, 1, 2]
    assert not caplog.records  # AutoTokenizer would warn of the model's type
