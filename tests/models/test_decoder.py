"""The decoder against transformers, against itself through the cache, and against its own promises."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.models.hf_models import CASES, build, oracle_logits
from whet.errors import UserError
from whet.models.decoder.decoder import Decoder, RopeScaling, parameter_count
from whet.models.decoder.families import FAMILIES
from whet.models.layers.attention import rotary_frequencies
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.load import load_model, new_model

# Families with grouped-query attention.
GROUPED = ("llama", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3_text", "qwen3_moe")
LENGTHS = torch.tensor([11, 4, 1, 7])
TOKENS = torch.randint(3, 97, (4, 11), generator=torch.Generator().manual_seed(5))


def small(family: str, *, seed: int = 0, tied_head: bool | None = None) -> Decoder:
    kv_heads = 2 if family in GROUPED else 4
    sizes = {"vocab_size": 97, "layers": 3, "heads": 4, "width": 32, "context": 48, "kv_heads": kv_heads}
    model = new_model(family, seed=seed, tied_head=tied_head, **sizes)
    with torch.no_grad():  # larger weights than at birth: attention that is far from uniform
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)) * 0.2)
    return model


@pytest.mark.parametrize("case", CASES)
def test_imported_logits_are_transformers_logits(case, tmp_path):
    oracle = build(*CASES[case])
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, Decoder)
    with torch.no_grad():
        logits = model(TOKENS, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = oracle_logits(oracle, TOKENS[row, :length])
        assert expected.abs().max() > 0.5  # a model that says nothing would agree with anything
        assert (logits[row, :length] - expected).abs().max() < 1e-5
    assert sum(p.numel() for p in model.parameters()) == oracle.num_parameters() == parameter_count(model.config)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_transformers_gradients(case, tmp_path):
    """Theirs are saved in place of their weights: by the names and in the layout of a checkpoint, as ours are."""
    oracle = build(*CASES[case])
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    length = torch.tensor([len(TOKENS[0])])
    pull = torch.randn(len(TOKENS[0]), 97, generator=torch.Generator().manual_seed(2))
    (model(TOKENS[:1], length)[0] * pull).sum().backward()
    (oracle(TOKENS[:1]).logits[0] * pull).sum().backward()
    for parameter in oracle.parameters():
        parameter.data = parameter.grad
    oracle.save_pretrained(tmp_path / "gradients")
    expected = load_file(tmp_path / "gradients" / "model.safetensors")
    found = model.family.export_weights({name: parameter.grad for name, parameter in model.named_parameters()})
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert gradient.shape == expected[name].shape
        assert (gradient - expected[name]).norm() <= 1e-5 * expected[name].norm() + 1e-6, name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied_head", [True, False])
def test_parameter_count_is_the_real_one(family, tied_head):
    model = small(family, tied_head=tied_head)
    assert parameter_count(model.config) == sum(p.numel() for p in model.parameters())


def test_gpt2_small_has_124_439_808_parameters():
    traits = FAMILIES["gpt2"].traits
    shape = {"layers": 12, "heads": 12, "kv_heads": 12, "head_dim": 64, "width": 768, "mlp_width": 3072}
    assert parameter_count(DecoderConfig(vocab_size=50257, context=1024, **shape, **traits)) == 124_439_808


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_pass(family):
    """Ragged prompts, fanned out, extended, shuffled, partly dropped, extended to the last place of the context."""
    model = small(family)
    sequences = [TOKENS[row, :length].tolist() for row, length in enumerate(LENGTHS.tolist())]
    states, cache = model.begin(TOKENS, LENGTHS, room=48)
    fan_out = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    cache.select(fan_out)
    sequences, states = [list(sequences[i]) for i in fan_out.tolist()], states[fan_out]
    generator = torch.Generator().manual_seed(3)
    for step in range(37):
        assert_states_match(model, sequences, states)
        if step in (4, 9, 20):
            keep = torch.randperm(len(sequences), generator=generator)[: len(sequences) - 2].contiguous()
            cache.select(keep)
            sequences = [sequences[i] for i in keep.tolist()]
        new = torch.randint(0, 97, (len(sequences),), generator=generator)
        states = model.extend(new, cache)
        for sequence, token in zip(sequences, new.tolist(), strict=True):
            sequence.append(token)
    assert_states_match(model, sequences, states)


def assert_states_match(model, sequences, states):
    for sequence, state in zip(sequences, states, strict=True):
        alone = model.hidden(torch.tensor([sequence]), torch.tensor([len(sequence)]))[0, -1]
        assert (state - alone).abs().max() < 1e-5


@torch.no_grad()
def test_the_cache_takes_as_many_tokens_as_were_asked_for_and_no_more():
    model = small("llama")
    _, cache = model.begin(TOKENS, LENGTHS, room=2)
    for _ in range(2):
        model.extend(TOKENS[:, 0], cache)
    with pytest.raises(UserError, match="14 tokens exceeds the cache of 13"):
        model.extend(TOKENS[:, 0], cache)
    cache.select(torch.tensor([1]))  # the short row may go on
    model.extend(TOKENS[1:2, 0], cache)


@torch.no_grad()
def test_rows_can_all_be_dropped():
    _, cache = small("llama").begin(TOKENS, LENGTHS, room=2)
    cache.select(torch.tensor([], dtype=torch.int64))
    assert len(cache.lengths) == 0


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_never_changes_what_stands_before_it(family):
    model = small(family)
    reference = model.hidden(TOKENS, LENGTHS)
    begun, _ = model.begin(TOKENS, LENGTHS, room=1)
    padding = torch.arange(11) >= LENGTHS[:, None]
    for filler in (0, 96, -100):  # -100 is no id at all: labels are often padded with it
        filled = TOKENS.masked_fill(padding, filler)
        assert torch.equal(model.hidden(filled, LENGTHS)[~padding], reference[~padding])
        assert torch.equal(model.begin(filled, LENGTHS, room=1)[0], begun)
    wider = torch.nn.functional.pad(TOKENS, (0, 9), value=50)
    assert (model.hidden(wider, LENGTHS)[:, :11][~padding] - reference[~padding]).abs().max() < 1e-5


@torch.no_grad()
def test_no_token_sees_the_future():
    model = small("qwen3")
    changed = TOKENS.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 97
    before, after = (model.hidden(t, torch.full((4,), 11)) for t in (TOKENS, changed))
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("family", ["gpt2", "olmo2", "gemma2", "qwen3_moe"])
def test_gradient_checkpointing_gives_the_same_gradients(family):
    gradients = []
    for recompute in (False, True):
        model = small(family)
        model.gradient_checkpointing = recompute
        model(TOKENS, LENGTHS).logsumexp(-1).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    moved = [name for name in gradients[0] if "k_proj.bias" not in name and ".experts." not in name]  # some are idle
    assert all(gradients[0][name].abs().sum() > 0 for name in moved)
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_gradient_checkpointing_keeps_fewer_activations():
    kept = {}
    for recompute in (False, True):
        model = small("llama")
        model.gradient_checkpointing = recompute
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: (s.append(t.numel()), t)[1], lambda t: t):
            model.hidden(TOKENS, LENGTHS)
        kept[recompute] = sum(sizes)
    assert kept[True] < kept[False] / 4


def test_initialisation_depends_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = new_model("llama", vocab_size=31, layers=2, heads=2, width=16, context=8, seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = new_model("llama", vocab_size=31, layers=2, heads=2, width=16, context=8, seed=7).state_dict()
    other = new_model("llama", vocab_size=31, layers=2, heads=2, width=16, context=8, seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_residual_projections_start_smaller_by_the_root_of_twice_the_depth():
    weights = new_model("gpt2", vocab_size=50, layers=8, heads=4, width=128, context=16, seed=0).state_dict()
    for name, std in (("q_proj", 0.02), ("up_proj", 0.02), ("o_proj", 0.02 / 4), ("down_proj", 0.02 / 4)):
        both = torch.stack([w.std() for n, w in weights.items() if n.endswith(f"{name}.weight")])
        assert both.mean() == pytest.approx(std, rel=0.02)
    assert all((w == 0).all() for n, w in weights.items() if n.endswith("bias"))
    assert all((w == 1).all() for n, w in weights.items() if n.endswith(("layernorm.weight", "norm.weight")))


def test_llama3_scaling_by_hand():
    """head_dim 4, base 100: frequencies 1 and 0.1. In a context of 50: 7.96 turns (kept) and 0.796 (slowed)."""
    config = small("llama").config
    scaling = RopeScaling(
        kind="llama3", factor=8.0, low_frequency_factor=0.5, high_frequency_factor=1.5, original_context=50
    )
    config = replace(config, head_dim=4, rope_base=100.0, rope_scaling=scaling)
    kept = 50 * 0.1 / (2 * math.pi) - 0.5  # how far 0.796 is on the way from 0.5 to 1.5
    expected = [1.0, 0.1 * (kept + (1 - kept) / 8)]
    assert rotary_frequencies(config, torch.device("cpu")).tolist() == pytest.approx(expected, rel=1e-6)
    linear = replace(config, rope_scaling=RopeScaling(kind="linear", factor=4.0))
    assert rotary_frequencies(linear, torch.device("cpu")).tolist() == pytest.approx([0.25, 0.025], rel=1e-6)


@torch.no_grad()
def test_a_model_in_bf16_keeps_exact_angles_and_norms():
    """At position 40 a bf16 angle would be off by up to 0.1 radians; the rounding of weights costs far less."""
    model = small("llama")
    tokens, lengths = TOKENS.repeat(1, 4)[:, :44], torch.full((4,), 44)
    exact = model.hidden(tokens, lengths)
    rounded = model.to(torch.bfloat16).hidden(tokens, lengths)
    assert rounded.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(exact, rounded.float(), dim=-1).min() > 0.995


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_sequence_longer_than_the_context_is_refused_with_both_numbers(family):
    model = small(family)
    tokens, lengths = torch.zeros(1, 49, dtype=torch.int64), torch.tensor([49])
    with pytest.raises(UserError, match="49 tokens exceeds the model's context of 48"):
        model.hidden(tokens, lengths)
    with pytest.raises(UserError, match="49 tokens exceeds the model's context of 48"):
        model.begin(tokens, lengths, room=0)


def test_an_empty_prompt_is_refused():
    with pytest.raises(UserError, match="no tokens"):
        small("llama").begin(TOKENS, torch.tensor([3, 0, 2, 1]), room=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"vocab_size": 9.5}, "vocab_size is 9.5"),
        ({"kv_heads": 3}, "kv_heads is 3: expected a divisor of the 4 heads"),
        ({"head_dim": 7}, "head_dim is 7: .* even"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        replace(small("llama").config, **change)


def test_unknown_rope_scaling_is_refused():
    with pytest.raises(UserError, match="'yarn' is not supported"):
        RopeScaling(kind="yarn", factor=2.0)
