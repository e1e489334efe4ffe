"""What a resumed run may change: how long it trains, and how often it evaluates and saves."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whet.config import OnlineConfig
from whet.config.loops import NAMED, Acting, CollectConfig
from whet.errors import UserError
from whet.recipe import Config, apply_override, dump, parse_yaml, plain, validate
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Change, Inputs, accept
from whet.train.optimizers.optimizer import learning_rate
from whet.train.session.input_files import current_inputs
from whet.train.setup.epochs import with_steps

MAY_CHANGE = (
    *("steps", "epochs", "eval.every_steps", "save.every_steps", "save.keep", "save.rollouts_every_steps"),
    *("save.top_tokens", "save.optimizer", "save.delete_old"),
    *("distributed.sharding", "distributed.cpu_offload", "distributed.replicas"),
    # Of a run that has them: in another one they would make rollouts stale.
    *("asynchronous.workers", "asynchronous.pool", "asynchronous.ticket_seconds", "asynchronous.weights_directory"),
    *("asynchronous.hand_off", "asynchronous.hand_off_seconds"),
)
AHEAD = "asynchronous."
CONFIG = "config.yaml"


def extended(run: RunDirectory, saved: Config, overrides: Sequence[str]) -> Config:
    """The config of a run with these overrides; a UserError for one that a resumed run cannot take."""
    written = parse_yaml(run.config_yaml(), where=str(run.path))
    is_ahead = isinstance(saved, OnlineConfig) and saved.asynchronous is not None
    may_change = [key for key in MAY_CHANGE if is_ahead or not key.startswith(AHEAD)]
    for override in overrides:
        key = override.partition("=")[0]
        key = f"{key}.{NAMED[key]}" if key in NAMED else key
        if key not in may_change or isinstance(saved, CollectConfig):
            kept = "" if isinstance(saved, CollectConfig) else f" except {', '.join(may_change)}"
            raise UserError(
                f"{override}: a resumed run keeps its config{kept}; to change it, start a new run with model={run.path}"
            )
        apply_override(written, override)
    config = with_steps(validate(written, where=f"{run.path}/{CONFIG}")) if overrides else saved
    if config.steps != saved.steps:
        _require_more(run, config.steps)
    return config


def changed_keys(saved: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key → value before and now, of every key that differs."""
    before, after = (dict(dotted(plain(config))) | _settings(config) for config in (saved, now))
    return {key: (before.get(key), after.get(key)) for key in {**before, **after} if before.get(key) != after.get(key)}


def _settings(config: Config) -> dict[str, Any]:
    """The keys of sections that are written only if set, or of which some keys are."""
    if isinstance(config, CollectConfig):
        return {}
    sections: dict[str, Any] = {"save": config.save}
    sections |= {} if isinstance(config, Acting) else {"distributed": config.distributed}
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section}


def dotted(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every setting of a config."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def as_overrides(changes: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """KEY=VALUE of changed keys."""
    return [f"{key}={json.dumps(now)}" for key, (_, now) in changes.items()]


def record_extension(run: RunDirectory, saved: Config, config: Config) -> list[str]:
    """Writes the new config of a run, and notes the change in its inputs; returns what to tell the user."""
    changes = changed_keys(saved, config)
    if not changes:
        return []
    sentences = [f"{key} {now} instead of {before}" for key, (before, now) in changes.items()]
    after_step = _last_step(run)
    if run.is_writer:
        inputs = run.accepted_inputs or run.inputs() or Inputs(known=current_inputs(saved, run.path))
        passed = [Change(key=CONFIG, sentence=sentence, is_setting=True) for sentence in sentences]
        run.write_config(dump(config))
        run.write_inputs(accept(inputs, current_inputs(config, run.path), passed, after_step=after_step))
        run.accepted_inputs = None
    return [f"resumed with {', '.join(sentences)}", *_new_schedule(saved, config, after_step)]


def _require_more(run: RunDirectory, steps: int) -> None:
    done, results = _last_step(run), (run.results() or {}) if run.finished else {}
    if steps <= done:
        raise UserError(f"steps={steps}: {run.path} has made {done} steps already; give more, e.g. steps={2 * done}")
    if "ended" in results:
        raise UserError(
            f"{run.path} ended by early stopping after step {done} ({results['ended']}), which more steps do not "
            f"change; to train on, start a new run with model={run.path}"
        )


def _last_step(run: RunDirectory) -> int:
    return max((row["step"] for row in run.metrics()), default=0)


def _new_schedule(saved: Config, config: Config, done: int) -> list[str]:
    """A note where the learning rate depends on the number of steps."""
    if isinstance(saved, CollectConfig) or isinstance(config, CollectConfig) or done >= config.steps or not done:
        return []
    if config.optimizer.schedule == "constant" or config.steps == saved.steps:
        return []
    rates = [learning_rate(step, saved.steps, saved.optimizer) for step in range(1, done + 1)]
    others = [learning_rate(step, config.steps, config.optimizer) for step in range(1, done + 2)]
    as_new = rates == others[:-1]
    differs = "" if as_new else f"; a run of {config.steps} steps from the start would have had other rates before that"
    return [
        f"note: the {config.optimizer.schedule} schedule now ends at step {config.steps}: the learning rate was "
        f"{rates[-1]:.3g} at step {done} and continues at {others[-1]:.3g}{differs}"
    ]
