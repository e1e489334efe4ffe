"""Every rule speaks on a run that was made to have its symptom, and is silent on one that learns."""

import ast
import re
from pathlib import Path

import pytest

import whet.doctor.rules.all_rules as table
from tests.doctor.made import (
    NEW,
    accuracy,
    constant,
    curve,
    evals,
    healthy_offline,
    healthy_online,
    history,
    noisy,
    ramp,
    rollout,
)
from whet.doctor.causes import CAUSES
from whet.doctor.diagnosis import diagnose, findings_of
from whet.doctor.rules.all_rules import RULES
from whet.doctor.rules.updates import large_changes

BEFORE_DATA = {"loop": "offline", "objective": {"beta": 0.1}}
OFFLINE = NEW | BEFORE_DATA
FLAT = evals(0.3, 0.3)
BY_NAME = {name: rule for rule in RULES for name in rule.names}


def at_rate(rate=1e-6):
    return NEW | {"optimizer": {"lr": rate}}


def control(place, finish="length"):
    """Rollouts in which token 7, which has no text, stands at a place of the completion."""
    pieces = ["a"] * 5
    pieces[place] = ""
    tokens = [1, 2, *[50] * 5]
    tokens[2 + place] = 7
    row = {"tokens": tokens, "mask": [False] * 2 + [True] * 5, "pieces": pieces, "finish": finish}
    return {3: [rollout("aaaa", **row) for _ in range(8)]}


def preference(*rows, **more):
    return history(*rows, kind="preference", config=OFFLINE, **more)


def reward_model(*rows, **more):
    return history(*rows, kind="reward", config=OFFLINE, **more)


def prompts(*texts):
    return {1: [rollout(prompt=text) for text in texts]}


QUESTIONS = tuple(f"What is {n} plus {n}?" for n in range(8))
ANSWERS = {0: [{"prompt": text, "answer": f"answer {n}"} for n, text in enumerate(QUESTIONS)]}
SEEN_ANSWERS = {0: [{"prompt": f"{text} (answer {n})", "answer": f"answer {n}"} for n, text in enumerate(QUESTIONS)]}
DOUBLE = [rollout(prompt=f"{word} x", tokens=[5, 5, 9, 50, 0], mask=[False] * 3 + [True] * 2) for word in "abcd"]
MEANS = noisy("reward/mean", 0.5, 0.05)

# name of a finding → a run that has the symptom, and the likeliest cause by the rule alone
SICK = {
    "held-out-fell": (history(evals(0.8, 0.6)), "learning-rate-too-high"),
    "overfitting": (
        history(curve("eval/loss", [2.0, 1.0, 1.06]), kind="sft", config=OFFLINE),
        "overfitting",
    ),
    "leaked-evaluation": (history(FLAT, rollouts=prompts(*QUESTIONS), answers=ANSWERS), "leaked-evaluation"),
    "answer-in-prompt": (history(FLAT, answers=SEEN_ANSWERS), "leaked-evaluation"),
    "failed-rewards": (history([{"step": 3, "reward/failures": 2}]), "reward-fails"),
    "constant-reward": (history(constant("reward/mean", 0.0), constant("reward/std", 0.0)), "prompts-too-hard"),
    "saturated-reward": (
        history(ramp("reward/mean", 0.2, 0.995), constant("reward/max", 1.0), constant("reward/std", 0.02), FLAT),
        "reward-misspecified",
    ),
    "one-part-rules": (
        history(constant("reward/share/a", 0.95), constant("reward/share/b", 0.05), FLAT),
        "one-part-rules",
    ),
    "reward-hacking": (history(ramp("reward/mean", 0.2, 0.9), evals(0.6, 0.4)), "reward-misspecified"),
    "contradictory-rewards": (history(constant("reward/contradictions", 0.5)), "noisy-reward"),
    "length-hacking": (
        history(
            ramp("length/mean", 100, 200),
            ramp("reward/mean", 0.2, 0.6),
            constant("length/reward_correlation", 0.7),
            FLAT,
        ),
        "reward-pays-length",
    ),
    "not-finite": (history([{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}]), "learning-rate-too-high"),
    "wrong-sign": (history(constant("surrogate/wrong_sign", 0.9)), "wrong-sign"),
    "ratio-at-start": (history(constant("ratio/max", 3.0)), "different-sampling"),
    "reward-falls": (history(ramp("reward/mean", 0.6, 0.3), constant("reward/std", 0.4)), "learning-rate-too-high"),
    "large-changes": (history(constant("weights/change", 0.5)), "learning-rate-too-high"),
    "fast-rate": (history(FLAT, config=at_rate(0.03)), "learning-rate-too-high"),
    "slow-rate": (history(FLAT, config=at_rate()), "learning-rate-too-low"),
    "still-weights": (history(constant("weights/change", 1e-6)), "learning-rate-too-low"),
    "plateau": (history(MEANS, constant("grad_norm", 0.5), FLAT, steps=40), "learning-rate-too-low"),
    "large-steps": (history(constant("approx_kl", 0.5)), "learning-rate-too-high"),
    "clipping": (
        history(constant("clip_fraction", 0.5), config={"update": {"epochs": 4}}),
        "too-many-updates",
    ),
    "skipped-updates": (
        history(constant("updates", 0.0), config={"update": {"target_kl": 1e-6}}),
        "target-kl-too-small",
    ),
    "zero-gradient": (history(constant("grad_norm", 0.0)), "constant-reward"),
    "entropy-collapse": (history(ramp("entropy", 1.2, 0.01), FLAT), "learning-rate-too-high"),
    "entropy-rise": (history(ramp("entropy", 1.0, 2.0), FLAT), "entropy-bonus-too-high"),
    "low-entropy": (
        history(constant("entropy", 0.02), constant("rollouts/duplicates", 0.9), FLAT),
        "temperature-too-low",
    ),
    "near-uniform-sampling": (
        history(constant("entropy", 2.0), MEANS, FLAT, config={"rollout": {"temperature": 2.0}}),
        "temperature-too-high",
    ),
    "zero-variance": (
        history(constant("groups/zero_variance", 0.9), constant("groups/all_wrong", 0.9), FLAT),
        "prompts-too-hard",
    ),
    "duplicate-prompts": (history(constant("prompts/duplicates", 0.9)), "duplicated-prompts"),
    "duplicate-rollouts": (history(constant("rollouts/duplicates", 0.9), FLAT), "temperature-too-low"),
    "truncation": (
        history(ramp("truncated", 0.9, 0.5), config={"rollout": {"max_tokens": 4}}),
        "max-tokens-too-small",
    ),
    "never-ends": (history(constant("truncated", 1.0), config={"rollout": {"max_tokens": 64}}), "no-stop-token"),
    "repetition": (history(ramp("rollouts/repeated_4grams", 0.02, 0.6), FLAT), "reward-pays-repetition"),
    "double-start-token": (history(FLAT, rollouts={1: DOUBLE}), "template"),
    "unheeded-stop": (history(FLAT, rollouts=control(2)), "no-stop-token"),
    "own-header": (history(FLAT, rollouts=control(0, finish="stop")), "template"),
    "mismatch": (history(constant("mismatch/mean", 0.2), constant("mismatch/max", 2.0)), "different-sampling"),
    "effective-samples": (history(constant("importance_correction/effective_tokens", 0.1)), "stale-sampler"),
    "reference-differs": (history(constant("kl", 0.1)), "wrong-reference"),
    "kl": (history(ramp("kl", 0.0, 3.0)), "kl-coefficient-too-low"),
    "held-by-reference": (
        history(noisy("kl", 0.01, 1e-3), constant("kl_coefficient", 5.0), MEANS, constant("grad_norm", 1.0), FLAT),
        "kl-coefficient-too-high",
    ),
    "dead-critic": (history(constant("critic/explained_variance", -0.2), FLAT), "critic-not-learning"),
    "both-fall": (
        preference(
            ramp("logprobs/chosen", -10, -30), ramp("logprobs/rejected", -10, -40), constant("length/chosen", 20.0)
        ),
        "learning-rate-too-high",
    ),
    "train-held-out-gap": (
        preference(ramp("pair_accuracy", 0.5, 0.99), accuracy("pair_accuracy", 0.5, 0.52)),
        "noisy-labels",
    ),
    "chance-level": (preference(noisy("pair_accuracy", 0.5, 0.01), steps=40), "noisy-labels"),
    "below-chance": (preference(accuracy("pair_accuracy", 0.5, 0.2)), "swapped-labels"),
    "length-bias": (preference(constant("length/chosen", 90), constant("length/rejected", 30)), "length-biased-data"),
    "length-drift": (preference(curve("eval/length", [30.0, 90.0])), "length-biased-data"),
    "miscalibration": (reward_model(curve("eval/calibration_error", [0.03, 0.3])), "overfitting"),
    "loss-rises": (preference(ramp("loss", 0.7, 1.5)), "learning-rate-too-high"),
    "loss-stands": (
        history(noisy("loss", 2.0, 0.02), kind="sft", config=at_rate() | BEFORE_DATA),
        "learning-rate-too-low",
    ),
}
# Findings that tell how things stand, and are never an alarm.
TOLD = {"held-out", "held-out-loss", "silent-part", "large-ratios", "gradient-spike", "entropy", "critic"}


def speaks(seen, name):
    """The finding of this name that the rule makes of a run."""
    found = BY_NAME[name](seen)
    return found if found is not None and found.rule == name else None


@pytest.mark.parametrize("name", SICK)
def test_it_speaks_on_a_run_with_the_symptom(name):
    seen, cause = SICK[name]
    found = speaks(seen, name)
    assert found is not None
    assert found.is_alarm
    assert found.causes[0] == cause
    assert set(found.causes) <= CAUSES.keys()
    assert name in {one.rule for one in findings_of(seen)}
    assert BY_NAME[name].missing(seen) == ""


@pytest.mark.parametrize("name", SICK)
def test_it_is_silent_on_a_run_that_learns(name):
    for seen in (healthy_online(), *map(healthy_offline, ("sft", "preference", "reward"))):
        found = speaks(seen, name)
        assert found is None or not found.is_alarm


def test_a_run_that_learns_has_no_alarm_and_everything_is_judged():
    seen = diagnose(healthy_online())
    assert seen.alarms == ()
    assert seen.causes == ()
    assert seen.level in ("note", "ok")
    assert [one.rule for one in seen.unjudged] == []
    for kind in ("sft", "preference", "reward"):
        assert diagnose(healthy_offline(kind)).alarms == ()


def test_every_finding_is_in_the_table_and_every_alarm_is_tested():
    written = set()
    for path in (Path(table.__file__).parent).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "rule" and isinstance(node.value, ast.Constant):
                written.add(node.value.value)
    assert written == set(BY_NAME)
    assert SICK.keys() | TOLD == set(BY_NAME)
    assert not SICK.keys() & TOLD


def test_symptoms_are_lines_and_metrics_are_named_as_they_are_logged():
    for rule in RULES:
        assert rule.symptom == rule.symptom.strip().rstrip(".")
        assert "\n" not in rule.symptom
        for name in rule.reads:
            assert re.fullmatch(r"[\w/]+", name)


METRICS = sorted({name for rule in RULES for name in rule.reads} | {"eval/accuracy", "eval/accuracy_low", "loss", "kl"})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.names[0])
@pytest.mark.parametrize("kind", ["online", "sft", "preference", "reward"])
def test_it_survives_nulls_zeros_and_few_steps(rule, kind):
    for value in (None, 0.0, 1e9, -1.0):
        for count in (0, 1, 12, 50):
            rows = [{"step": step, **dict.fromkeys(METRICS, value)} for step in range(count)]
            found = rule(history(rows, kind=kind, rollouts={1: []}, answers={1: []}))
            assert found is None or "\n" not in found.sentence


def test_a_rule_without_its_metrics_is_silent_and_says_what_it_lacks():
    empty = history()
    for rule in RULES:
        found = rule(empty)
        assert found is None or not found.is_alarm
        assert bool(rule.missing(empty)) == bool(rule.reads)
    few = history(constant("truncated", 1.0, steps=4))
    assert BY_NAME["truncation"].missing(few) == "truncated has 4 of 10 values"
    assert BY_NAME["kl"].missing(few) == "kl was not logged"
    assert BY_NAME["own-header"].missing(few) == "no rollouts are kept"


ONLINE_ONLY = re.compile("reward|prompt|temperature|sampl|rollout|group|policy")


@pytest.mark.parametrize("kind", ["sft", "preference", "reward"])
@pytest.mark.parametrize("objective", ["usual", "losses.py:mine"])
def test_an_offline_run_is_told_causes_that_it_can_have(kind, objective):
    config = OFFLINE | {"objective": {"name": objective}}
    for rows in (constant("grad_norm", 0.0), [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}]):
        seen = diagnose(history(rows, kind=kind, config=config))
        assert seen.alarms
        assert seen.causes
        assert not [cause for cause in seen.causes if ONLINE_ONLY.search(f"{cause.name} {cause.sentence}")]
        assert ("own-loss" in {cause.name for cause in seen.causes}) == (objective != "usual")


def test_a_policy_in_an_environment_has_no_prompts():
    seen = history(constant("grad_norm", 0.0), config={"loop": "control"})
    assert speaks(seen, "zero-gradient").causes == ("constant-reward",)


def test_a_step_of_many_updates_may_change_the_weights_by_much():
    changes = constant("weights/change", 0.5)
    assert large_changes(history(changes)) is not None
    assert large_changes(history(changes, config={"loop": "off_policy"})) is None
