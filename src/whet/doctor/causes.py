"""The causes that findings name: what each is in plain words, how suspicious the settings make it, what to change.

`suspicion` multiplies the votes of findings: 1 says nothing, 0 rules a cause out, more is a setting far from usual.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from whet.doctor import thresholds as at
from whet.doctor.failures import FAILURES
from whet.doctor.findings import Change
from whet.doctor.settings import Settings

FAR = 3.0  # times the usual learning rate that is suspicious
STRONG = 3.0  # suspicion of a setting far from usual
RULED_OUT = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownCause:
    sentence: str
    changes: Callable[[Settings], tuple[Change, ...]] = lambda _: ()
    suspicion: Callable[[Settings], float] = lambda _: 1.0


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _lower_rate(s: Settings) -> tuple[Change, ...]:
    value = s.usual_rate if s.rate > FAR * s.usual_rate else s.rate / 5
    why = "the usual rate of such a model" if s.rate > FAR * s.usual_rate else "a fifth"
    return (Change(key="optimizer.lr", value=_rounded(value), why=why),)


def _raise_rate(s: Settings) -> tuple[Change, ...]:
    value = s.usual_rate if s.rate < s.usual_rate / FAR else 5 * s.rate
    why = "the usual rate of such a model" if s.rate < s.usual_rate / FAR else "five times as much"
    return (Change(key="optimizer.lr", value=_rounded(value), why=why),)


def _of_high_rate(s: Settings) -> float:
    return STRONG if s.rate > FAR * s.usual_rate else 0.5 if s.rate < s.usual_rate / FAR else 1.0


def _of_low_rate(s: Settings) -> float:
    return STRONG if s.rate < s.usual_rate / 20 else RULED_OUT if s.rate > s.usual_rate else 1.0


def _fewer_updates(s: Settings) -> tuple[Change, ...]:
    changes = []
    if s.number("update.epochs", 1) > 1:
        changes.append(Change(key="update.epochs", value=1, why="every rollout is used once"))
    if s.number("update.minibatches", 1) > 4:
        changes.append(Change(key="update.minibatches", value=2, why="fewer steps from the same rollouts"))
    return tuple(changes) or _lower_rate(s)


def _of_updates(s: Settings) -> float:
    return STRONG if s.updates_a_step >= 8 else RULED_OUT if s.updates_a_step <= 1 else 1.0


def _preset_cell(s: Settings) -> tuple[Change, ...]:
    """The cells of the preset in place of the user's own ones."""
    cells = {"algorithm.surrogate": "clip", "algorithm.kl.estimator": "k3", "algorithm.advantage": "standardize"}
    return tuple(
        Change(key=key, value=value, why="the function of the library in place of your own")
        for key, value in cells.items()
        if s.is_own(key)
    )


def _has_own_cells(s: Settings) -> float:
    keys = ("algorithm.surrogate", "algorithm.advantage", "algorithm.kl.estimator", "algorithm.scaling")
    return STRONG if any(s.is_own(key) for key in keys) else 0.3


def _of_coefficient(s: Settings) -> float:
    return s.number("algorithm.kl.coefficient")


def _change(key: str, value: object, why: str) -> Callable[[Settings], tuple[Change, ...]]:
    return lambda _: (Change(key=key, value=value, why=why),)


def _reward_change(s: Settings) -> tuple[Change, ...]:
    """The reward of the task itself, where the recipe replaced it."""
    if s.get("reward.functions"):
        return (Change(key="reward.functions", value=[], why="the task's own reward measures what is correct"),)
    if s.get("reward.model"):
        return (Change(key="algorithm.kl.coefficient", value=0.05, why="stay where the reward model was trained"),)
    return ()


def _reward_functions(s: Settings) -> int:
    found = s.get("reward.functions")
    return len(found) if isinstance(found, list) else 0


def _of_own_reward(s: Settings) -> float:
    return 1.5 if s.get("reward.functions") or s.get("reward.model") else 0.7


def _clip_range(s: Settings) -> tuple[Change, ...]:
    return tuple(
        Change(key=f"algorithm.clip.{end}", value=0.2, why="the usual range")
        for end in ("low", "high")
        if s.number(f"algorithm.clip.{end}", 0.2) < 0.1
    )


def _of_clip(s: Settings) -> float:
    narrow = min(s.number("algorithm.clip.low", 0.2), s.number("algorithm.clip.high", 0.2))
    return STRONG if narrow < at.NARROW else 1.0 if narrow < 0.1 else RULED_OUT


def _of_target_kl(s: Settings) -> float:
    if s.get("update.target_kl") is None:
        return RULED_OUT
    return STRONG if s.number("update.target_kl", 1.0) < 1e-3 else 1.0


def _more_tokens(s: Settings) -> tuple[Change, ...]:
    value = 4 * int(s.number("rollout.max_tokens", 16))
    keys = ["rollout.max_tokens"]
    if 0 < s.number("eval.max_tokens") < value:  # which is refused
        keys.append("eval.max_tokens")
    return tuple(Change(key=key, value=value, why="room for a whole answer") for key in keys)


def _easier(s: Settings) -> tuple[Change, ...]:
    """A supervised start and easier prompts, where the recipe has a key for them; else more completions a prompt."""
    changes = []
    if s.get("cold_start.steps") == 0 and s.get("task.level") is not None:
        changes.append(Change(key="cold_start.steps", value=30, why="supervised steps on solutions first"))
    if s.number("task.level") > 1:
        changes.append(Change(key="task.level", value=int(s.number("task.level")) // 2, why="prompts it can solve"))
    more = Change(key="rollout.group", value=2 * int(s.number("rollout.group", 8)), why="more tries, more successes")
    return tuple(changes) or (more,)


def _of_temperature(s: Settings, *, low: bool) -> float:
    temperature = s.number("rollout.temperature", 1.0)
    is_far = temperature <= 0.5 if low else temperature >= 1.4
    return STRONG if is_far else 0.2


def _of_entropy_bonus(s: Settings) -> float:
    coefficient = max(s.number("algorithm.entropy.coefficient"), s.number("algorithm.entropy.floor"))
    return RULED_OUT if coefficient == 0 else STRONG if coefficient >= 0.03 else 1.0


def _no_bonus(s: Settings) -> tuple[Change, ...]:
    keys = ("coefficient", "floor")
    return tuple(
        Change(key=f"algorithm.entropy.{key}", value=0.0, why="the reward decides, not the bonus")
        for key in keys
        if s.number(f"algorithm.entropy.{key}") > 0
    )


def _critic_changes(s: Settings) -> tuple[Change, ...]:
    if s.number("critic.lr", s.usual_rate) < s.usual_rate / FAR:
        return (Change(key="critic.lr", value=_rounded(s.usual_rate), why="it learns too slowly to follow the policy"),)
    return (Change(key="critic.warmup_steps", value=10, why="it learns before the policy moves"),)


def _smaller_penalty(s: Settings) -> tuple[Change, ...]:
    value = _rounded(min(0.05, _of_coefficient(s) / 20))
    return (Change(key="algorithm.kl.coefficient", value=value, why="the reward outweighs the penalty"),)


def _larger_penalty(s: Settings) -> tuple[Change, ...]:
    value = _rounded(max(0.05, 5 * _of_coefficient(s)))
    return (Change(key="algorithm.kl.coefficient", value=value, why="the policy is held near the reference"),)


def _reference(s: Settings) -> tuple[Change, ...]:
    if str(s.get("algorithm.kl.reference", "start")) != "start":
        return (Change(key="algorithm.kl.reference", value="start", why="the policy before training"),)
    return ()


def _fewer_steps(s: Settings) -> tuple[Change, ...]:
    steps, epochs = s.number("steps"), s.number("epochs")
    key, value = ("epochs", epochs) if epochs > 1 else ("steps", steps)
    stop = Change(key="early_stopping.patience", value=2, why="stop when the held-out result no longer improves")
    return (Change(key=key, value=max(1, int(value / 4)), why="stop before rows are learned by heart"), stop)


def _of_beta(s: Settings) -> float:
    if s.get("objective.beta") is None:
        return 1.0
    return STRONG if s.number("objective.beta", 1.0) < 0.02 else 0.5


CAUSES: Mapping[str, KnownCause] = {
    "learning-rate-too-high": KnownCause(
        sentence="the learning rate is too high: every step overshoots, so the model collapses or drifts away before "
        "later steps can correct it",
        changes=_lower_rate,
        suspicion=_of_high_rate,
    ),
    "learning-rate-too-low": KnownCause(
        sentence="the learning rate is too low: gradients are there, and the weights hardly follow them",
        changes=_raise_rate,
        suspicion=_of_low_rate,
    ),
    "too-many-updates": KnownCause(
        sentence="too many optimizer steps are made on the same rollouts: after the first ones they come from another "
        "policy, and most tokens are clipped",
        changes=_fewer_updates,
        suspicion=_of_updates,
    ),
    "wrong-sign": KnownCause(
        sentence="a loss has the wrong sign: it makes good tokens less likely, or pushes away from the reference",
        changes=_preset_cell,
        suspicion=_has_own_cells,
    ),
    "kl-coefficient-too-high": KnownCause(
        sentence="the KL penalty outweighs the reward, so the best policy is the reference itself",
        changes=_smaller_penalty,
        suspicion=lambda s: RULED_OUT if _of_coefficient(s) == 0 else STRONG if _of_coefficient(s) >= 1 else 0.5,
    ),
    "kl-coefficient-too-low": KnownCause(
        sentence="nothing holds the policy near the reference, and it leaves what the reference knows",
        changes=_larger_penalty,
        suspicion=lambda s: 0.3 if _of_coefficient(s) >= 0.1 else 1.0,
    ),
    "wrong-reference": KnownCause(
        sentence="the reference is not the model that training began with, so the KL penalty pulls elsewhere",
        changes=_reference,
        suspicion=lambda s: STRONG if _reference(s) else 0.5,
    ),
    "constant-reward": KnownCause(
        sentence="the reward is the same for every completion: it does not depend on what the policy does",
        changes=_reward_change,
        suspicion=_of_own_reward,
    ),
    "noisy-reward": KnownCause(
        sentence="the reward is random or wrong for many completions, so good and bad ones cannot be told apart",
        changes=_reward_change,
        suspicion=_of_own_reward,
    ),
    "reward-pays-length": KnownCause(
        sentence="longer completions get more reward whether or not they are right",
        changes=lambda s: (
            _reward_change(s) or (Change(key="reward.length_penalty", value=0.01, why="a token must be worth it"),)
        ),
        suspicion=_of_own_reward,
    ),
    "reward-misspecified": KnownCause(
        sentence="the reward pays for something other than the task, and the policy has found it; read the rollouts "
        "with the highest rewards",
        changes=_reward_change,
        suspicion=_of_own_reward,
    ),
    "one-part-rules": KnownCause(
        sentence="one part of the reward decides nearly all of it, so the others are not learned",
        changes=_reward_change,
        suspicion=lambda s: 1.5 if _reward_functions(s) > 1 else 0.5,
    ),
    "reward-fails": KnownCause(
        sentence="the reward function raises or runs out of time on some completions",
        changes=_reward_change,
    ),
    "leaked-evaluation": KnownCause(
        sentence="what is evaluated was seen in training, or its answer can be read off the prompt: held-out results "
        "say nothing of new prompts",
    ),
    "stale-sampler": KnownCause(
        sentence="the sampler keeps older weights than the trainer's: rollouts come from a policy of earlier steps",
        changes=_change("engine.name", "native", "its weights are those of the trainer"),
    ),
    "different-sampling": KnownCause(
        sentence="sampler and trainer compute different distributions: another temperature, filter or precision",
        changes=_change("rollout.temperature", 1.0, "then both read the same logits"),
        suspicion=lambda s: 1.5 if s.number("rollout.temperature", 1.0) != 1.0 else 1.0,
    ),
    "critic-not-learning": KnownCause(
        sentence="the critic does not learn to predict returns, so advantages are as noisy as without it",
        changes=_critic_changes,
    ),
    "template": KnownCause(
        sentence="prompts are not written as the model knows them: the beginning-of-sequence token stands twice, "
        "or the chat template's generation header is missing",
        changes=_change("task.chat", True, "the model's own template writes the prompt once"),
    ),
    "no-stop-token": KnownCause(
        sentence="the policy never writes a token that ends a completion: the end token is missing from the stops, or "
        "it was never learned",
    ),
    "max-tokens-too-small": KnownCause(
        sentence="completions are truncated before an answer can be complete",
        changes=_more_tokens,
    ),
    "duplicated-prompts": KnownCause(
        sentence="the data has few different prompts, so the policy learns them by heart",
    ),
    "prompts-too-hard": KnownCause(
        sentence="the policy solves next to none of the prompts, so all rollouts of a group get the same reward",
        changes=_easier,
    ),
    "prompts-too-easy": KnownCause(
        sentence="the policy solves the prompts already, so all rollouts of a group get the same reward",
    ),
    "temperature-too-low": KnownCause(
        sentence="sampling at a low temperature gives nearly the same completion every time",
        changes=_change("rollout.temperature", 1.0, "rollouts that differ"),
        suspicion=lambda s: _of_temperature(s, low=True),
    ),
    "temperature-too-high": KnownCause(
        sentence="sampling at a high temperature gives noise instead of what the policy prefers",
        changes=_change("rollout.temperature", 1.0, "the policy's own distribution"),
        suspicion=lambda s: _of_temperature(s, low=False),
    ),
    "entropy-bonus-too-high": KnownCause(
        sentence="the entropy bonus pays more than the reward, so the policy becomes random",
        changes=_no_bonus,
        suspicion=_of_entropy_bonus,
    ),
    "clip-range-too-small": KnownCause(
        sentence="the clip range is so narrow that ratios leave it at once, and their tokens get no gradient",
        changes=_clip_range,
        suspicion=_of_clip,
    ),
    "target-kl-too-small": KnownCause(
        sentence="update.target_kl ends the optimizer steps before the policy has moved",
        changes=_change("update.target_kl", None, "no limit; or one of about 0.05"),
        suspicion=_of_target_kl,
    ),
    "reward-scale": KnownCause(
        sentence="rewards are large and not normalised, so single rollouts decide the gradient",
        changes=_change("reward.normalize", "batch", "rewards of mean 0 and deviation 1"),
    ),
    "reward-pays-repetition": KnownCause(
        sentence="the reward pays for saying the same again",
        changes=lambda s: (
            _reward_change(s) or (Change(key="reward.repetition_penalty", value=1.0, why="repeated n-grams cost"),)
        ),
        suspicion=_of_own_reward,
    ),
    "noisy-labels": KnownCause(
        sentence="many labels are wrong: which completion is better cannot be learned from them"
    ),
    "swapped-labels": KnownCause(sentence="chosen and rejected are exchanged in the data"),
    "beta-too-small": KnownCause(
        sentence="β is so small that the policy may move far from the reference for a small gain",
        changes=_change("objective.beta", 0.1, "the usual strength of the pull to the reference"),
        suspicion=_of_beta,
    ),
    "length-biased-data": KnownCause(
        sentence="the better completions of the data are the longer ones, so length is what is learned",
    ),
    "overfitting": KnownCause(
        sentence="the rows of training are learned by heart",
        changes=_fewer_steps,
    ),
    "no-trained-tokens": KnownCause(
        sentence="no token of the rows is trained on: replies are empty, or what stands before them leaves no room",
    ),
    "nothing-to-compare": KnownCause(
        sentence="the rows give nothing to compare: the completions of a pair are the same, or all labels are",
    ),
    "loss-satisfied": KnownCause(
        sentence="the loss has nothing left to gain on these rows, like a hinge beyond its margin",
    ),
    "own-loss": KnownCause(
        sentence="the loss is a function of your own, and gives no number or no gradient: whet check-loss tests it",
        suspicion=lambda s: STRONG if s.is_own("objective.name") else RULED_OUT,
    ),
    **{name: KnownCause(sentence=sentence) for name, sentence in FAILURES.items()},
}
