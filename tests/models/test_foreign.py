"""Architectures that only transformers knows, behind our protocol."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.models.hf_models import TINY, build, oracle_logits
from whet.errors import UserError
from whet.models.foreign import ForeignLM, check_foreign
from whet.models.load import load_model, model_summary
from whet.models.storage.safetensors_files import fingerprint

FOREIGN = {
    "rotary-parallel": ("GPTNeoX", TINY | {"hidden_dropout": 0.3, "attention_dropout": 0.3}),
    "softcapped-sliding": (
        "VaultGemma",
        TINY | {"head_dim": 8, "sliding_window": 6, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    ),
    "biased-head": ("Phi", TINY | {"num_key_value_heads": 6}),
    "scaled-up": ("Cohere", TINY | {"logit_scale": 0.25}),
    "scaled-down": ("Granite", TINY | {"logits_scaling": 4.0}),
    "alibi": ("Bloom", {"vocab_size": 97, "hidden_size": 48, "n_layer": 2, "n_head": 4, "seq_length": 64}),
    "mixture": ("Mixtral", TINY | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
}
LENGTHS = torch.tensor([9, 4, 1])
TOKENS = torch.randint(3, 97, (3, 9), generator=torch.Generator().manual_seed(5))


def load(name: str, tmp_path) -> tuple[transformers.PreTrainedModel, ForeignLM]:
    oracle = build(*FOREIGN[name])
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, ForeignLM)
    return oracle, model


@pytest.mark.parametrize("name", FOREIGN)
@torch.no_grad()
def test_logits_are_transformers_logits_and_padding_is_invisible(name, tmp_path):
    oracle, model = load(name, tmp_path)
    for filler in (TOKENS, TOKENS.masked_fill(torch.arange(9) >= LENGTHS[:, None], -100)):
        logits = model.head(model.hidden(filler, LENGTHS))
        for row, length in enumerate(LENGTHS.tolist()):
            expected = oracle_logits(oracle, TOKENS[row, :length])
            assert (logits[row, :length] - expected).abs().max() < 1e-4
    assert (model.context, model.vocab_size) == (64, 97)


@pytest.mark.parametrize("name", FOREIGN)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_pass(name, tmp_path):
    _, model = load(name, tmp_path)
    sequences = [TOKENS[row, :length].tolist() for row, length in enumerate(LENGTHS.tolist())]
    states, cache = model.begin(TOKENS, LENGTHS, room=20)
    fan_out = torch.tensor([0, 1, 1, 2])
    cache.select(fan_out)
    sequences, states = [list(sequences[i]) for i in fan_out.tolist()], states[fan_out]
    generator = torch.Generator().manual_seed(3)
    for step in range(10):
        for sequence, state in zip(sequences, states, strict=True):
            alone = model.hidden(torch.tensor([sequence]), torch.tensor([len(sequence)]))[0, -1]
            assert (state - alone).abs().max() < 1e-4
        if step == 5:
            cache.select(torch.tensor([3, 1]))
            sequences = [sequences[3], sequences[1]]
        new = torch.randint(0, 97, (len(sequences),), generator=generator)
        states = model.extend(new, cache)
        for sequence, token in zip(sequences, new.tolist(), strict=True):
            sequence.append(token)


def test_training_mode_and_gradient_checkpointing_change_no_gradient(tmp_path):
    """The config asks for 30 % dropout: were it on anywhere, the two passes could not agree."""
    _, model = load("rotary-parallel", tmp_path)
    gradients = []
    for recompute in (False, True):
        model.gradient_checkpointing = recompute
        model.train()
        model.zero_grad()
        model.head(model.hidden(TOKENS, LENGTHS)).logsumexp(-1).square().mean().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        with torch.no_grad():  # the cache still works in between
            _, cache = model.begin(TOKENS, LENGTHS, room=1)
            model.extend(TOKENS[:, 0], cache)
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    assert any(gradient.abs().sum() > 0 for gradient in gradients[0].values())


def test_saved_models_load_again(tmp_path):
    oracle, model = load("softcapped-sliding", tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    model.save(again)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(again).eval()
    assert (oracle_logits(theirs, TOKENS[0]) - oracle_logits(oracle, TOKENS[0])).abs().max() < 1e-6
    assert fingerprint(load_model(again)) == fingerprint(model)
    model.save(again, torch.bfloat16)
    assert model_summary(again)["dtype"] == "bfloat16"
    assert transformers.AutoConfig.from_pretrained(again).dtype == torch.bfloat16
    ours, rounded = model.state_dict(), load_model(again).state_dict()
    assert all(torch.equal(rounded[name], rounded[name].bfloat16().float()) for name in ours)
    assert all(torch.allclose(rounded[name], ours[name], rtol=2**-7, atol=0) for name in ours)


def test_logits_that_the_parts_do_not_explain_are_refused():
    """A head that transforms its logits in a way that no config key declares."""

    class Shifted(transformers.GPTNeoXForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 1.5
            return output

    model = Shifted(transformers.GPTNeoXConfig(**TINY))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    with pytest.raises(UserError, match="computes its logits in a way that is not supported"):
        check_foreign(ForeignLM(model), "shifted")


def test_a_missing_tensor_is_not_made_up(tmp_path):
    build(*FOREIGN["biased-head"]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.fc1.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks tensor 'model\.layers\.1\.mlp\.fc1\.weight'"):
        load_model(tmp_path)


def test_unknown_architectures_and_remote_code_are_refused(tmp_path):
    build(*FOREIGN["biased-head"]).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mystery", "auto_map": {"AutoConfig": "evil.Config"}}')
    (tmp_path / "evil.py").write_text("raise SystemExit('remote code ran')")
    with pytest.raises(UserError, match="cannot be loaded by transformers"):
        load_model(tmp_path)


def test_limits(tmp_path):
    _, model = load("biased-head", tmp_path)
    with pytest.raises(UserError, match="65 tokens exceeds the model's context of 64"):
        model.hidden(torch.zeros(1, 65, dtype=torch.int64), torch.tensor([65]))
    _, cache = model.begin(torch.ones(1, 64, dtype=torch.int64), torch.tensor([64]), room=1)
    with pytest.raises(UserError, match="65 tokens exceeds the model's context of 64"):
        model.extend(torch.tensor([1]), cache)
    with pytest.raises(UserError, match="no tokens"):
        model.begin(TOKENS, torch.tensor([1, 0, 1]), room=1)


def test_summary(tmp_path):
    oracle, _ = load("biased-head", tmp_path)
    summary = model_summary(tmp_path)
    assert (summary["family"], summary["implementation"]) == ("phi", "transformers")
    assert summary["parameters"] == oracle.num_parameters()
    assert (summary["layers"], summary["width"], summary["context"], summary["vocab"]) == (3, 48, 64, 97)
