"""Rewards of texts: the same for any batch, read where the model was trained to be read."""

import math

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models.places import last_places
from tests.small import ALPHABET, small_model, train_bpe
from whet.errors import RunFailed, UserError
from whet.models.load import new_model
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.scoring import Scorer, aggregated, load_scorer, one_step, split_steps, stepped_text, whole_text
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer, with_padding, wrap_backend
from whet.records import Message

PREFERENCE = RewardSettings(kind="preference")
OUTCOME = RewardSettings(kind="outcome")
PROMPTS = ["1+1=", "abc>", "1+1=", "7", "1+1=", "abc>"]
TEXTS = ["2", "cba", "3", "", "22222", "abcabcabcabc"]


def scorer(settings=PREFERENCE, *, context=64, **options):
    policy, tokenizer = small_model(sharp=3.0, context=context)
    tokenizer, pad = with_padding(tokenizer)
    model = new_reward_model(policy, settings, seed=1, pad=pad)
    with torch.no_grad():
        model.head.weight.mul_(20)
    return Scorer(model, tokenizer, **options)


def by_hand(judge, ids):
    """The score at the last id."""
    tokens, lengths = torch.tensor([ids]), torch.tensor([len(ids)])
    with torch.no_grad():
        return judge.model.scores(tokens, lengths, last_places(lengths, len(ids)))[0]


def ids(text):
    """The character tokeniser by hand: 0 ends a sequence, then the alphabet in order."""
    return [ALPHABET.index(character) + 1 for character in text]


def test_a_text_is_prompt_completion_and_end():
    _, tokenizer = small_model()
    text = whole_text(tokenizer, "1+", "2b", 10)
    assert text.tokens == (*ids("1+2b"), 0)
    assert (text.prompt, text.places, text.cut) == (2, (4,), 0)
    assert whole_text(tokenizer, "1+", "2b", 10, every_token=True).places == (2, 3, 4)


def test_what_does_not_fit_is_cut_from_the_beginning():
    _, tokenizer = small_model()
    text = whole_text(tokenizer, "1+1=", "2b", 4)
    assert text.tokens == (*ids("=2b"), 0)
    assert (text.prompt, text.places, text.cut) == (1, (3,), 3)
    full = whole_text(tokenizer, "1+1=", "2b", 3)
    assert (full.prompt, full.places, full.cut) == (0, (2,), 4)
    inside = whole_text(tokenizer, "1+1=", "abcd", 3, every_token=True)
    assert inside.tokens == (*ids("cd"), 0)
    assert (inside.prompt, inside.places, inside.cut) == (0, (0, 1, 2), 6)


def test_steps_end_with_the_separator():
    _, tokenizer = small_model()
    text = stepped_text(tokenizer, "7", ["ab", "c"], 20, separator="=>")
    assert text.tokens == tuple(ids("7ab=>c=>"))
    assert text.places == (4, 7)
    assert stepped_text(tokenizer, "7", ["ab", "c"], 3, separator="=>").places == (2,)
    assert split_steps("ab=>=>c=>", "=>") == ["ab", "c"]
    assert split_steps(" ", "=>") == [""]


@pytest.mark.parametrize(
    ("step", "separator", "plain"),
    [
        ("a\nb", "\n", "a b"),
        ("\na\n\nb\n", "\n", "a b"),
        (" a", "\n", " a"),
        ("a\n", "\n\n", "a "),  # before "\n\n" the step would end one token too early
        ("a\nb", "\n\n", "a\nb"),
        ("a=>b=>", "=>", "a b"),
        ("a b", " ", "ab"),
        ("\n", "\n", ""),
    ],
)
def test_a_separator_always_ends_a_step(step, separator, plain):
    assert one_step(step, separator) == one_step(plain, separator) == plain
    assert split_steps(f"{plain}{separator}z", separator) == ([plain, "z"] if plain else ["z"])


def test_steps_of_a_bpe_vocabulary_end_where_a_token_ends():
    """Encoded as one text, the separator could melt into the next step."""
    tokenizer = train_bpe(["so\nx so\nx so\nx"] * 20, 300)
    text = stepped_text(tokenizer, "q", ["so", "x so"], 50, separator="\n")
    first = text.tokens[1 : text.places[0] + 1]
    assert tokenizer.decode(first) == "so\n"
    assert tokenizer.decode(text.tokens[text.places[0] + 1 :]) == "x so\n"


def test_preference_scores_are_those_at_the_end():
    judge = scorer()
    expected = [float(by_hand(judge, [*ids(p + t), 0])) for p, t in zip(PROMPTS, TEXTS, strict=True)]
    assert judge.score(PROMPTS, TEXTS) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.5
    assert judge.score([], []) == []


@pytest.mark.parametrize("micro_batch_tokens", [1, 12, 30, 1000])
def test_any_batch_size_gives_the_same(micro_batch_tokens):
    few, all_at_once = scorer(micro_batch_tokens=micro_batch_tokens), scorer()
    assert few.score(PROMPTS, TEXTS) == pytest.approx(all_at_once.score(PROMPTS, TEXTS), abs=1e-5)
    order = [3, 5, 0, 2, 1, 4]
    shuffled = few.score([PROMPTS[i] for i in order], [TEXTS[i] for i in order])
    expected = all_at_once.score(PROMPTS, TEXTS)
    assert shuffled == pytest.approx([expected[i] for i in order], abs=1e-5)


def test_an_outcome_is_a_probability():
    judge = scorer(OUTCOME)
    score = float(by_hand(judge, [*ids("1+1=2"), 0]))
    assert judge.score(["1+1="], ["2"]) == pytest.approx([1 / (1 + math.exp(-score))], abs=1e-6)


@pytest.mark.parametrize("how", ["product", "min", "last"])
def test_a_process_is_the_aggregate_of_its_steps(how):
    settings = RewardSettings(kind="process", classes=3, separator=">", aggregation=how)
    judge = scorer(settings)
    fine = []
    for upto in ("7ab>", "7ab>c>"):
        bad, neither, good = by_hand(judge, ids(upto)).exp().tolist()
        fine.append((neither + good) / (bad + neither + good))
    assert judge.steps(["7"], ["ab>c"]) == [pytest.approx(fine, abs=1e-5)]
    expected = {"product": fine[0] * fine[1], "min": min(fine), "last": fine[1]}[how]
    assert judge.score(["7", "1"], ["ab>c", "2"])[0] == pytest.approx(expected, abs=1e-5)


def test_aggregates_by_hand():
    assert aggregated([0.5, 0.25, 0.5], "product") == 0.0625
    assert aggregated([0.5, 0.25, 0.5], "min") == 0.25
    assert aggregated([0.5, 0.25, 0.75], "last") == 0.75


def test_texts_over_the_limit_are_read_from_their_end_and_counted():
    judge = scorer(max_tokens=6)
    score = judge.score(["abcdefgh>"], ["12"])
    assert score == pytest.approx([float(by_hand(judge, [*ids("gh>12"), 0]))], abs=1e-5)
    assert judge.truncated == 1
    judge.score(["1", "abcdefgh>"], ["2", "abcdefgh"])
    assert judge.truncated == 2
    assert scorer(context=5).score(["abcdefgh>"], ["abcdefgh"]) == pytest.approx(
        [float(by_hand(scorer(context=5), [*ids("efgh"), 0]))], abs=1e-5
    )


def test_a_model_reads_as_much_as_it_was_trained_with():
    trained = RewardSettings(kind="preference", max_tokens=6)
    judge = scorer(trained)
    assert judge.limit == 6
    assert judge.score(["abcdefgh>"], ["12"]) == pytest.approx([float(by_hand(judge, [*ids("gh>12"), 0]))], abs=1e-5)
    assert scorer(trained, max_tokens=9).limit == 9  # whoever asks for more gets it, up to the context
    assert scorer(trained, context=4).limit == 4
    assert scorer(context=5).limit == 5


def test_no_gradient_is_kept():
    judge = scorer()
    judge.score(PROMPTS, TEXTS)
    assert all(parameter.grad is None for parameter in judge.model.parameters())


def test_conversations_go_through_the_template():
    judge = scorer()
    spoken = (Message(role="user", content="1+1="),)
    assert judge.score([spoken], ["2"]) == pytest.approx(judge.score(["1+1="], ["2"]), abs=1e-6)


def test_a_directory_holds_model_and_tokenizer_and_transformers_agrees(tmp_path):
    judge = scorer()
    judge.model.save(tmp_path)
    judge.tokenizer.save(tmp_path)
    back = load_scorer(tmp_path, torch.device("cpu"))
    expected = judge.score(PROMPTS, TEXTS)
    assert back.score(PROMPTS, TEXTS) == pytest.approx(expected, abs=1e-6)
    hf = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert hf.pad_token_id == model.config.pad_token_id
    whole = [prompt + text + hf.eos_token for prompt, text in zip(PROMPTS, TEXTS, strict=True)]
    with torch.no_grad():
        theirs = model(**hf(whole, padding=True, add_special_tokens=False, return_tensors="pt")).logits[:, 0]
    assert theirs.tolist() == pytest.approx(expected, abs=1e-5)


def test_padding_is_an_id_of_its_own():
    plain = character_tokenizer("ab")
    tokenizer, pad = with_padding(plain)
    assert pad == plain.vocab_size
    assert tokenizer.vocab_size == plain.vocab_size + 1
    assert pad not in tokenizer.stops
    assert (tokenizer.eos, tokenizer.stops) == (plain.eos, plain.stops)
    assert tokenizer.encode("abba") == plain.encode("abba")
    again, same = with_padding(tokenizer)
    assert same == pad
    assert again.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize(
    ("specials", "taken"),
    [
        (("<|reserved_0|>", "<|right_pad|>"), "<|right_pad|>"),
        (("<|call|>", "<|reserved_7|>"), "<|reserved_7|>"),
        (("<|call|>", "<|reserved_in_chats|>"), "<|pad|>"),  # in the chat template
    ],
)
def test_a_spare_control_token_pads_so_that_no_id_is_added(specials, taken):
    template = "{{ '<|reserved_in_chats|>' ~ messages[0]['content'] }}"
    backend = Backend(models.WordLevel({"a": 0, "b": 1}))
    plain = wrap_backend(backend, eos="<eos>", chat_template=template, specials=specials)
    tokenizer, pad = with_padding(plain)
    assert tokenizer.vocab_size == plain.vocab_size + (taken == "<|pad|>")
    assert tokenizer._hf.convert_ids_to_tokens(pad) == taken
    assert tokenizer.stops == plain.stops


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    judge = scorer()
    judge.model.save(tmp_path)
    character_tokenizer(ALPHABET + "ijklmnopqrstuvwxyz").save(tmp_path)
    with pytest.raises(UserError, match="they do not belong together"):
        load_scorer(tmp_path, torch.device("cpu"))


def test_a_score_that_is_no_number_stops_the_run():
    judge = scorer()
    with torch.no_grad():
        judge.model.head.weight.fill_(math.nan)
    with pytest.raises(RunFailed, match="not a finite number"):
        judge.score(["1"], ["2"])


def test_an_empty_prompt_and_steps_of_other_kinds_are_refused():
    with pytest.raises(UserError, match="no tokens"):
        scorer().score([""], ["2"])
    with pytest.raises(UserError, match="does not score steps"):
        scorer().steps(["1"], ["2"])


def test_a_reward_model_may_have_another_vocabulary_than_the_policy():
    """It reads text, not ids."""
    tokenizer, pad = with_padding(train_bpe(["1+1=2 abc cba 22222"] * 4, 300))
    policy = new_model("gpt2", vocab_size=300, layers=1, heads=2, width=16, context=64, seed=0)
    judge = Scorer(new_reward_model(policy, PREFERENCE, seed=0, pad=pad), tokenizer)
    scores = judge.score(PROMPTS, TEXTS)
    assert len(set(scores)) == len(scores)
