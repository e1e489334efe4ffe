"""A score belongs to its text alone, and a saved reward model is the same model in transformers."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.models.hf_models import TINY, build
from tests.models.places import last_places
from tests.small import small_model
from whet.errors import UserError
from whet.models.decoder.families import FAMILIES
from whet.models.foreign import ForeignLM
from whet.models.layers.packing import pack
from whet.models.reward.reward_model import load_reward_model, new_reward_model, pack_through
from whet.models.reward.settings import RewardSettings, step_classes

PREFERENCE = RewardSettings(kind="preference")
PROCESS = RewardSettings(kind="process", classes=3, separator="\n\n", aggregation="min")
LENGTHS = [9, 3, 14, 1]
WIDTH = 14


def reward_model(family="llama", settings=PREFERENCE, **options):
    policy, _ = small_model(family, sharp=3.0)
    model = new_reward_model(policy, settings, seed=1, **options)
    with torch.no_grad():
        model.head.weight.mul_(20)  # scores of about 2, so that a wrong token shows
    return model


def rows(vocab=20, seed=0):
    """Random rows with random ids in the padding too."""
    tokens = torch.randint(1, vocab, (len(LENGTHS), WIDTH), generator=torch.Generator().manual_seed(seed))
    return tokens, torch.tensor(LENGTHS)


def alone(model, tokens, lengths, places):
    """The oracle: every place by a forward pass over the tokens up to it, one row, no padding."""
    scores = []
    for row, place in places.nonzero().tolist():
        assert place < lengths[row]
        upto = tokens[row : row + 1, : place + 1]
        state = model.trunk.hidden(upto, torch.tensor([place + 1]))[0, -1]
        scores.append(model.head.weight @ state + (0 if model.head.bias is None else model.head.bias))
    return torch.stack(scores).squeeze(-1) if model.classes == 1 else torch.stack(scores)


def test_the_last_places():
    expected = [[False, False, True, False], [True, False, False, False], [False, False, False, True]]
    assert last_places(torch.tensor([3, 1, 4]), 4).tolist() == expected


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_score_is_that_of_the_text_alone(family):
    model = reward_model(family)
    tokens, lengths = rows()
    places = last_places(lengths, WIDTH)
    expected = alone(model, tokens, lengths, places)
    assert expected.std() > 0.3
    padded = model.scores(tokens, lengths, places)
    packed = model.scores(tokens, lengths, places, pack_through(tokens, places))
    torch.testing.assert_close(padded, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_and_batch_mates_do_not_change_a_score():
    model = reward_model()
    tokens, lengths = rows()
    few = model.scores(tokens[:2, :9], lengths[:2], last_places(lengths[:2], 9))
    other_padding = torch.cat([torch.where(torch.arange(WIDTH) < lengths[:, None], tokens, 7), tokens], dim=1)
    many = model.scores(other_padding, lengths, last_places(lengths, 2 * WIDTH))
    torch.testing.assert_close(many[:2], few, atol=1e-5, rtol=0)
    shuffled = torch.tensor([2, 0, 3, 1])
    places = last_places(lengths, WIDTH)[shuffled]
    again = model.scores(tokens[shuffled], lengths[shuffled], places, pack_through(tokens[shuffled], places))
    torch.testing.assert_close(again, many[shuffled], atol=1e-5, rtol=0)


@torch.no_grad()
def test_scores_at_steps_are_in_row_order_and_have_all_classes():
    model = reward_model(settings=PROCESS)
    tokens, lengths = rows()
    places = torch.zeros(len(LENGTHS), WIDTH, dtype=torch.bool)
    for row, place in [(0, 2), (0, 8), (1, 0), (2, 5), (2, 6), (2, 13), (3, 0)]:
        places[row, place] = True
    expected = alone(model, tokens, lengths, places)
    assert expected.shape == (7, 3)
    torch.testing.assert_close(model.scores(tokens, lengths, places), expected, atol=1e-5, rtol=0)
    packed = model.scores(tokens, lengths, places, pack_through(tokens, places))
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_shared_prompt_is_read_once_and_changes_nothing():
    model = reward_model()
    tokens, lengths = rows()
    tokens[1:3, :2] = tokens[0, :2]  # rows 0, 1 and 2 are completions of one prompt of two tokens
    mask = (torch.arange(WIDTH) >= 2) & (torch.arange(WIDTH) < lengths[:, None])
    mask[3, 0] = True
    places = last_places(lengths, WIDTH)
    packing = pack_through(tokens, mask, torch.tensor([5, 5, 5, 6]))
    assert len(packing.tokens) == 2 + 7 + 1 + 12 + 1
    expected = alone(model, tokens, lengths, places)
    torch.testing.assert_close(model.scores(tokens, lengths, places, packing), expected, atol=1e-5, rtol=0)


def test_a_packing_for_log_probs_is_refused():
    """It lacks the last token, whose place would silently be read as that of the first."""
    model = reward_model()
    tokens, lengths = rows()
    places = last_places(lengths, WIDTH)
    with pytest.raises(AssertionError, match="pack_through"):
        model.scores(tokens[:3], lengths[:3], places[:3], pack(tokens[:3], places[:3]))


def test_gradients_are_the_same_padded_packed_and_recomputed():
    model = reward_model()
    tokens, lengths = rows()
    places = last_places(lengths, WIDTH)
    gradients = []
    for packing, recompute in [(None, False), (pack_through(tokens, places), False), (None, True)]:
        model.gradient_checkpointing = recompute
        assert model.trunk.gradient_checkpointing is recompute
        model.zero_grad()
        scores = model.scores(tokens, lengths, places, packing)
        (scores * torch.tensor([1.0, -2.0, 0.5, 1.5])).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for others in gradients[1:]:
        assert others.keys() == gradients[0].keys()
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(others[name], gradient, atol=1e-4, rtol=1e-4)


def test_a_row_without_places_has_no_scores():
    model = reward_model()
    tokens, lengths = rows()
    none = torch.zeros(len(LENGTHS), WIDTH, dtype=torch.bool)
    assert model.scores(tokens, lengths, none).shape == (0,)
    assert reward_model(settings=PROCESS).scores(tokens, lengths, none).shape == (0, 3)


def test_a_new_model_is_a_copy_whose_scores_do_not_tie():
    policy, _ = small_model("llama")
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    model = new_reward_model(policy, PREFERENCE, seed=3)
    again = new_reward_model(policy, PREFERENCE, seed=3)
    assert torch.equal(model.head.weight, again.head.weight)
    assert not torch.equal(model.head.weight, new_reward_model(policy, PREFERENCE, seed=4).head.weight)
    assert not any("lm_head" in name for name, _ in model.named_parameters())
    tokens, lengths = rows()
    scores = model.scores(tokens, lengths, last_places(lengths, WIDTH)).detach()
    assert len(set(scores.tolist())) == len(LENGTHS)
    assert float(scores.abs().max()) < 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def padded_ids(tokens, lengths, pad, side):
    """What a transformers tokeniser gives: ids and attention mask, padded on a side."""
    ids, mask = torch.full(tokens.shape, pad), torch.zeros(tokens.shape, dtype=torch.int64)
    for row, length in enumerate(lengths.tolist()):
        where = slice(0, length) if side == "right" else slice(tokens.shape[1] - length, None)
        ids[row, where], mask[row, where] = tokens[row, :length], 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "olmoe"])  # transformers has no such class
@torch.no_grad()
def test_transformers_reads_the_same_scores(family, tmp_path):
    model = reward_model(family)
    model.save(tmp_path)
    theirs, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert theirs.config.num_labels == 1
    assert theirs.config.problem_type == "regression"
    tokens, lengths = rows()
    tokens[:, :] = torch.where(torch.arange(WIDTH) == lengths[:, None] - 1, 0, tokens)  # all end with eos, which is 0
    expected = model.scores(tokens, lengths, last_places(lengths, WIDTH))
    for side in ("right", "left"):
        inputs = padded_ids(tokens, lengths, theirs.config.pad_token_id, side)
        if family == "gpt2":  # its positions count columns unless they are given
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
        torch.testing.assert_close(theirs(**inputs).logits[:, 0], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_with_the_end_of_sequence_would_be_read_one_token_too_early(tmp_path):
    """Why a reward model has a padding id of its own."""
    model = reward_model()
    model.save(tmp_path)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokens, lengths = torch.tensor([[5, 6, 7, 0]]), torch.tensor([4])
    right = model.scores(tokens, lengths, last_places(lengths, 4))
    assert theirs(tokens).logits[0] == pytest.approx(right.tolist(), abs=1e-5)
    theirs.config.pad_token_id = 0
    early = model.scores(tokens, lengths, last_places(lengths - 1, 4))
    assert theirs(tokens).logits[0] == pytest.approx(early.tolist(), abs=1e-5)
    assert abs(float(right - early)) > 0.1


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
@torch.no_grad()
def test_classes_of_steps_are_a_token_classifier(family, tmp_path):
    model = reward_model(family, PROCESS)
    model.head.bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    model.save(tmp_path)
    theirs, report = AutoModelForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens, lengths = rows()
    inside = torch.arange(WIDTH) < lengths[:, None]
    logits = theirs(tokens, attention_mask=inside.long()).logits
    torch.testing.assert_close(logits[inside], model.scores(tokens, lengths, inside), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "settings", [PREFERENCE, RewardSettings(kind="outcome", every_token=True, max_tokens=48), PROCESS]
)
@torch.no_grad()
def test_a_saved_model_comes_back(family, settings, tmp_path):
    model = reward_model(family, settings)
    model.save(tmp_path)
    back = load_reward_model(tmp_path)
    assert back.settings == settings
    assert back.pad == model.pad
    ours, theirs = model.state_dict(), back.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    model.save(tmp_path, torch.bfloat16)
    theirs = load_reward_model(tmp_path).state_dict()
    assert all(torch.equal(theirs[name].bfloat16().float(), theirs[name]) for name in ours)
    assert all(torch.allclose(ours[name], theirs[name], rtol=2**-7, atol=0) for name in ours)


@torch.no_grad()
def test_a_known_padding_id_adds_no_row():
    assert reward_model(pad=5).vocab_size == small_model()[0].vocab_size
    assert reward_model().vocab_size == small_model()[0].vocab_size + 1


@torch.no_grad()
def test_a_classifier_of_transformers_is_a_preference_model(tmp_path):
    config = transformers.LlamaConfig(**TINY | {"pad_token_id": 3, "num_labels": 1})
    torch.manual_seed(0)
    theirs = transformers.LlamaForSequenceClassification(config).eval()
    theirs.score.weight.mul_(20)
    theirs.save_pretrained(tmp_path)
    model = load_reward_model(tmp_path)
    assert (model.kind, model.classes, model.pad) == ("preference", 1, 3)
    tokens, lengths = rows(vocab=97)
    tokens[tokens == 3] = 4
    expected = theirs(**padded_ids(tokens, lengths, 3, "right")).logits[:, 0]
    ours = model.scores(tokens, lengths, last_places(lengths, WIDTH))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def foreign_policy():
    settings = {name: value for name, value in TINY.items() if name != "num_key_value_heads"}
    return ForeignLM(build("GPTNeoX", settings))


@pytest.mark.parametrize("settings", [PREFERENCE, PROCESS])
@torch.no_grad()
def test_a_foreign_architecture_is_a_reward_model_too(settings, tmp_path):
    policy = foreign_policy()
    state = torch.get_rng_state()
    model = new_reward_model(policy, settings, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    model.head.weight.mul_(20)
    assert model.vocab_size == 98
    tokens, lengths = rows(vocab=97)
    places = last_places(lengths, WIDTH)
    expected = alone(model, tokens, lengths, places)
    state = policy.hidden(tokens[:1, :9], lengths[:1])[0, -1]  # of the language model that it was made from
    torch.testing.assert_close(expected[0], (model.head.weight @ state).squeeze(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.scores(tokens, lengths, places), expected, atol=1e-5, rtol=0)
    packed = model.scores(tokens, lengths, places, pack_through(tokens, places))
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=0)
    model.save(tmp_path)
    back = load_reward_model(tmp_path)
    assert (back.settings, back.pad) == (settings, 97)
    torch.testing.assert_close(back.scores(tokens, lengths, places), expected, atol=1e-5, rtol=0)
    if settings.classes == 1:
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
        logits = theirs(**padded_ids(tokens, lengths, 97, "right")).logits[:, 0]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_a_foreign_text_may_be_as_long_as_the_context():
    model = new_reward_model(foreign_policy(), PREFERENCE, seed=1)
    tokens = torch.arange(64)[None] % 90
    places = last_places(torch.tensor([64]), 64)
    whole = model.scores(tokens, torch.tensor([64]), places)
    packed = model.scores(tokens, torch.tensor([64]), places, pack_through(tokens, places))
    torch.testing.assert_close(packed, whole, atol=1e-5, rtol=0)


def test_step_classes():
    assert step_classes([1, 0, -1], 3) == [2, 1, 0]
    assert step_classes([1, 0, -1], 2) == [1, 1, 0]


def damaged(directory, what):
    config, settings = directory / "config.json", directory / "whet_reward.json"
    if what == "language model":
        small_model()[0].save(directory)
    elif what == "two labels":
        tensors = load_file(directory / "model.safetensors")
        tensors["score.weight"] = tensors["score.weight"].repeat(2, 1)
        save_file(tensors, directory / "model.safetensors")
        settings.unlink()
    elif what == "no config":
        config.unlink()
    elif what == "bad json":
        settings.write_text("{", encoding="utf-8")
    elif what == "cut":
        whole = (directory / "model.safetensors").read_bytes()
        (directory / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    elif what == "head of another width":
        tensors = load_file(directory / "model.safetensors")
        tensors["score.weight"] = tensors["score.weight"][:, :-1].contiguous()
        save_file(tensors, directory / "model.safetensors")
    else:
        entries = json.loads(settings.read_text("utf-8"))
        settings.write_text(json.dumps(entries | what), encoding="utf-8")


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("language model", "is no reward model: it has no head"),
        ("two labels", "gives 2 numbers per text, but a preference reward model gives 1"),
        ("no config", "has no config.json"),
        ("bad json", "whet_reward.json is not valid JSON"),
        ("cut", "is damaged or truncated"),
        ("head of another width", "tensor 'score.weight' has shape"),
        ({"kind": "judge"}, "'kind' is 'judge': Input should be 'preference', 'outcome' or 'process'"),
        ({"classes": 3}, "a preference reward model has 1 classes, not 3"),
        ({"aggregation": "mean"}, "'aggregation' is 'mean': Input should be 'product', 'min' or 'last'"),
        ({"separator": 3}, "'separator' is 3: Input should be a valid string"),
        ({"extra": 3}, "key 'extra' is unknown: save the model again"),
        ({"max_tokens": "9"}, "'max_tokens' is '9': Input should be a valid integer"),
        ({"max_tokens": True}, "'max_tokens' is True: Input should be a valid integer"),
        ({"max_tokens": 0}, "'max_tokens' is 0: Input should be greater than or equal to 1"),
        ({"format": 7}, "is of format 7, not 2"),
    ],
)
def test_wrong_directories_are_named_in_one_line(what, sentence, tmp_path):
    reward_model().save(tmp_path)
    damaged(tmp_path, what)
    with pytest.raises(UserError, match=sentence) as caught:
        load_reward_model(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_the_first_format_do_not_say_how_many_tokens_a_text_had(tmp_path):
    reward_model().save(tmp_path)
    path = tmp_path / "whet_reward.json"
    content = json.loads(path.read_text())
    assert content.pop("format") == 2
    del content["max_tokens"]
    path.write_text(json.dumps({**content, "format": 1}))
    assert load_reward_model(tmp_path).settings == PREFERENCE


def test_a_process_model_needs_a_separator():
    with pytest.raises(UserError, match="separator"):
        RewardSettings(kind="process", classes=2, separator="")


def test_a_tensor_under_two_names_is_refused(tmp_path):
    reward = new_reward_model(small_model("gpt2", layers=1)[0], PREFERENCE, seed=0)
    reward.save(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "wte.weight": stored["transformer.wte.weight"] + 1}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has the same tensor as .*wte\.weight' and as .*wte\.weight': remove one"):
        load_reward_model(tmp_path)
