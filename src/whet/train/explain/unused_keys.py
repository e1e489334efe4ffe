"""Keys of a recipe that have no effect. Lists a key only if that is certain."""

from collections.abc import Iterator, Mapping
from typing import Any

from whet.algorithms.advantages import keep_all
from whet.algorithms.cells import name, options, plain, terms
from whet.algorithms.policy_loss import clip, dual_clip, geometric_clip, stopped_ratio, uncorrected
from whet.algorithms.table import CELLS
from whet.config import AlgorithmBase, OnlineConfig, TrainConfig
from whet.config.control import ControlConfig
from whet.config.control.off_policy import OffPolicyConfig
from whet.config.loops import Acting, CollectConfig
from whet.recipe import Recipe
from whet.tasks.loading import TASKS

# Surrogates that do not depend on the clip range at a ratio of 1.
CLIPPING = frozenset({clip, dual_clip, stopped_ratio, geometric_clip})
NO_MODELS = ("uniform", "bigram")  # references without weights
ROUNDING = 0.01  # two passes over the same tokens may differ by rounding, which a narrower clip could notice
ROUNDING_KL = 1e-3  # the same for a KL, which is quadratic

OFFLINE = {
    **dict.fromkeys(("update.epochs", "update.minibatches"), "the offline loop takes one optimizer step per batch"),
    "update.target_kl": "the offline loop has no old policy to stay close to",
    "update.mismatch_limit": "the offline loop does not sample",
    **dict.fromkeys(
        ("early_stopping.kl", "save.rollouts_every_steps", "save.top_tokens"), "the offline loop has no rollouts"
    ),
}

OF_SAC = ("entropy_coefficient", "target_entropy")
OF_TD3 = ("policy_delay", "target_noise", "target_noise_clip", "action_noise")
PLACES_OF_REFERENCE = ("offload.reference", "placement.reference")
OF_WORKERS = ("workers", "prompts_per_call", "time_limit_seconds", "memory_limit_gb", "environment")


def keys_without_effect(recipe: Recipe) -> dict[str, str]:
    """Dotted key → reason, for keys written in the recipe's file or as overrides."""
    config = recipe.config
    if isinstance(config, CollectConfig):
        return {}
    if isinstance(config, ControlConfig):
        inert = _schedule(config) | _control(config)
    elif isinstance(config, OffPolicyConfig):
        inert = _schedule(config) | _off_policy(config)
    else:
        inert = _schedule(config) | (_online(config) if isinstance(config, OnlineConfig) else OFFLINE)
    found: dict[str, str] = {}
    for key in written_keys(recipe.written):
        reasons = [why for inner, why in inert.items() if key == inner or key.startswith(f"{inner}.")]
        found |= {key: reasons[0]} if reasons else {}
    return found


def written_keys(written: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys of a nested mapping."""
    for key, value in written.items():
        if isinstance(value, Mapping):
            yield from written_keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _schedule(config: TrainConfig | Acting) -> dict[str, str]:
    optimizer, inert = config.optimizer, {}
    if optimizer.schedule != "wsd":
        inert["optimizer.decay_share"] = f"optimizer.schedule is {optimizer.schedule}; wsd has a decay of its own"
    if optimizer.schedule == "constant":
        inert["optimizer.min_lr_share"] = "optimizer.schedule is constant, so the rate does not fall"
    if optimizer.name != "muon":
        inert["optimizer.momentum"] = f"optimizer.name is {optimizer.name}, whose momentum is beta1"
    if optimizer.name == "lion":
        inert["optimizer.epsilon"] = "optimizer.name is lion, which divides by nothing"
    if optimizer.weight_decay == 0:
        inert["optimizer.weight_decay_on"] = "optimizer.weight_decay is 0"
    # The first step after the warm-up has the full rate under every schedule; without steps, epochs decide.
    if config.steps and config.steps - optimizer.warmup(config.steps) <= 1:
        inert["optimizer.schedule"] = "the run ends with the warm-up, before the rate could fall"
    return inert


def _control(config: ControlConfig) -> dict[str, str]:
    algorithm, policy = config.algorithm, config.policy
    inert = _entropy(algorithm) | {"save.rollouts_every_steps": "loop control keeps no rollouts"}
    if not config.needs_values:
        inert["critic"] = f"algorithm.advantage is {name(algorithm.cell('advantage'))}, which asks no critic"
    if name(algorithm.cell("surrogate")) != "clip":
        inert["update.anneal_clip"] = f"algorithm.surrogate is {name(algorithm.cell('surrogate'))}"
    if not config.normalize.observations and not config.normalize.rewards:
        inert["normalize.clip"] = "nothing is normalised"
    if policy.kind != "transformer":
        inert |= dict.fromkeys(("policy.layers", "policy.heads"), f"policy.kind is {policy.kind}")
    if policy.kind != "mlp":
        inert["policy.activation"] = f"policy.kind is {policy.kind}"
    return inert | _no_evaluations(config)


def _off_policy(config: OffPolicyConfig) -> dict[str, str]:
    algorithm = config.algorithm
    inert = {"save.rollouts_every_steps": "loop off_policy keeps no rollouts"}
    others = OF_TD3 if algorithm.preset == "sac" else OF_SAC
    inert |= {f"algorithm.{key}": f"algorithm.preset is {algorithm.preset}" for key in others}
    if algorithm.preset == "sac" and algorithm.entropy_coefficient != "auto":
        inert["algorithm.target_entropy"] = "algorithm.entropy_coefficient is fixed"
    if not config.normalize.observations:
        inert["normalize.clip"] = "nothing is normalised"
    return inert | _no_evaluations(config)


def _no_evaluations(config: Acting) -> dict[str, str]:
    if config.eval.every_steps:
        return {}
    return dict.fromkeys(("eval.episodes", "eval.deterministic"), "eval.every_steps is 0")


def _online(config: OnlineConfig) -> dict[str, str]:
    of_algorithm = _unused_cells(config.algorithm) | _entropy(config.algorithm)
    stale = "asynchronous.staleness is above 0, so sampler and trainer have other weights; workers prove theirs"
    of_algorithm |= {"update.mismatch_limit": stale} if config.staleness else {}
    if config.asynchronous is not None and config.asynchronous.hand_off == "files":
        of_algorithm["asynchronous.hand_off_seconds"] = "asynchronous.hand_off is files"
    return of_algorithm | _one_update(config) | _kl(config) | _reward(config) | _machinery(config)


def _unused_cells(algorithm: AlgorithmBase) -> dict[str, str]:
    """Options of cells that are not selected."""
    chosen = {kind: algorithm.cell(kind) for kind in CELLS}
    return {
        f"algorithm.{key}": f"algorithm.{kind} is {name(chosen[kind])}"
        for kind, table in CELLS.items()
        for key, cell in table.items()
        if options(cell) and plain(chosen[kind]) is not cell
    }


def _one_update(config: OnlineConfig) -> dict[str, str]:
    """Settings that matter only after the first update on a batch, or where the sampler had older weights."""
    is_ratio_to_sampler = plain(config.algorithm.cell("importance_correction")) is uncorrected
    if config.update.epochs * config.update.minibatches > 1 or (config.staleness and is_ratio_to_sampler):
        return {}
    inert = {}
    surrogate = config.algorithm.cell("surrogate")
    widths = [value for key, value in options(surrogate).items() if key != "bound"]
    bound = options(surrogate).get("bound", 2.0)  # of dual_clip: at 1 or below it also clips a ratio of 1
    if plain(surrogate) in CLIPPING and min(widths) >= ROUNDING and bound >= 1 + ROUNDING:
        inert[f"algorithm.{name(surrogate)}"] = "one update per rollout: every ratio is 1, so nothing is clipped"
    if config.update.target_kl is not None and config.update.target_kl >= ROUNDING_KL:
        inert["update.target_kl"] = "one update per rollout: it is the first, so the policy has not moved before it"
    return inert


def _kl(config: OnlineConfig) -> dict[str, str]:
    kl, inert = config.algorithm.kl, {}
    if kl.target is None:
        inert["algorithm.kl.horizon"] = "algorithm.kl.target is not set, so the coefficient does not follow it"
    if kl.reference != "sync":
        inert |= dict.fromkeys(
            ("algorithm.kl.sync_steps", "algorithm.kl.ema"), f"algorithm.kl.reference is {kl.reference}"
        )
    elif kl.sync_steps >= config.steps:
        inert["algorithm.kl.ema"] = "the run ends before the reference could move"
    if kl.coefficient > 0:
        return inert
    keys = ["place", "estimator", "anneal_tokens"]
    if not config.algorithm.needs_reference:
        keys += ["reference", "sync_steps", "ema"]
    return {**inert, **{f"algorithm.kl.{key}": "algorithm.kl.coefficient is 0" for key in keys}}


def _entropy(algorithm: AlgorithmBase) -> dict[str, str]:
    inert = {}
    if algorithm.entropy.floor == 0:
        inert["algorithm.entropy.floor_coefficient"] = "algorithm.entropy.floor is 0, and no entropy is below that"
    elif algorithm.entropy.floor_coefficient == 0:
        inert["algorithm.entropy.floor"] = "algorithm.entropy.floor_coefficient is 0"
    return inert


def _reward(config: OnlineConfig) -> dict[str, str]:
    inert, reward = {}, config.reward
    if reward.overlong_tokens == 0:
        inert["reward.overlong_penalty"] = "reward.overlong_tokens is 0, so no completion is overlong"
    elif reward.overlong_penalty == 0:
        inert["reward.overlong_tokens"] = "reward.overlong_penalty is 0"
    if reward.repetition_penalty == 0:
        inert["reward.repetition_ngram"] = "reward.repetition_penalty is 0"
    if reward.tokens is not None:
        inert |= {f"reward.{key}": "reward.tokens compares tokens without a worker" for key in OF_WORKERS}
    elif not reward.functions and config.task.name in TASKS:
        reason = "reward.functions is empty: a packaged task scores without a worker"
        inert |= {f"reward.{key}": reason for key in OF_WORKERS}
    return inert


def _machinery(config: OnlineConfig) -> dict[str, str]:
    """Settings of the critic, dynamic sampling and offloading, if the run has none of them."""
    inert: dict[str, str] = {}
    advantage = config.algorithm.cell("advantage")
    if "values" not in terms(advantage):
        no_critic = f"algorithm.advantage is {name(advantage)}, which asks no critic"
        inert |= {"critic": no_critic, "offload.critic": no_critic}
    elif config.critic.model == "shared":
        inert["offload.critic"] = "critic.model is shared: all but a small head is the policy"
    if config.rollout.mask_truncated:
        inert["critic.bootstrap_truncated"] = "rollout.mask_truncated: truncated rollouts are not trained on"
    if not config.algorithm.needs_reference:
        inert |= dict.fromkeys(PLACES_OF_REFERENCE, "the algorithm compares with no reference")
    elif config.algorithm.kl.reference in NO_MODELS:
        no_model = f"algorithm.kl.reference is {config.algorithm.kl.reference}, which is no model"
        inert |= dict.fromkeys(PLACES_OF_REFERENCE, no_model)
    if config.reward.model is None:
        inert |= dict.fromkeys(("offload.reward", "placement.reward"), "reward.model is not set")
    elif config.reward.model.workers:
        inert["offload.reward"] = "reward.model.workers have the reward model"
    else:
        inert |= dict.fromkeys(("reward.model.threads", "reward.model.pass_seconds"), "reward.model.workers is 0")
    if config.device == "cpu":
        inert["offload"] = "device is cpu, whose memory is the host's"
    if plain(config.algorithm.cell("dynamic_sampling")) is keep_all:
        inert["rollout.max_resamples"] = "algorithm.dynamic_sampling is keep_all, so no group is dropped"
    return inert
