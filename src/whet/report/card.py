"""The model card of a run: base, data, recipe, and held-out results with their intervals, in the layout of the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from whet.errors import UserError, escaped
from whet.evaluate.measures import Measure, measures_in
from whet.runs.directory import RunDirectory

CARD = "README.md"
ADAPTER = "adapter_config.json"


def model_card(run: RunDirectory, *, name: str = "", base: str = "") -> str:
    """README.md of the run's best model. Paths of this machine are shortened.

    `name` is that of the repository, `base` that of the model it started from, as others know it.
    """
    results = run.results()
    if results is None:
        raise UserError(f"{run.path} is not finished, so there are no results to write a card from: finish it first")
    config = _without_paths(yaml.safe_load(run.config_yaml()))
    best = run.best_model()
    adapter = best is not None and (best / ADAPTER).is_file()
    base = base or _base(config)
    front = {
        **({"base_model": base} if base else {}),
        "library_name": "peft" if adapter else "transformers",
        "tags": ["whet", _method(config), *(["lora"] if adapter else [])],
    }
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False).rstrip(),
        "---",
        "",
        f"# {escaped(name or run.recipe)}",
        "",
        f"Trained with whet {results['versions']['whet']} from {base or 'random weights'}: {_method(config)}, "
        f"{results['steps']} steps, seed {results['seed']}.",
        "",
        "## Held-out results",
        "",
        *_table(results),
        "",
        "## Recipe",
        "",
        "```yaml",
        yaml.safe_dump(config, sort_keys=False, allow_unicode=True).rstrip(),
        "```",
        "",
        f"Software: {', '.join(f'{name} {version}' for name, version in results['versions'].items())}.",
    ]
    return "\n".join(lines) + "\n"


def _table(results: Mapping[str, Any]) -> list[str]:
    """Every measure before and after training."""
    before, after, best = results["before"], results["after"], results["best"]
    measures = measures_in(after)
    if not measures:
        return ["The run was not evaluated."]
    rows = [f"| {m.label} | {_value(m, before)} | {_value(m, after)} |" for m in measures]
    size = measures[0].sample_size(after)
    chosen = f" The saved model is that of step {best['step']}." if "step" in best else ""
    return [
        "| measure | before training | at the end |",
        "|---|---|---|",
        *rows,
        "",
        f"95 % intervals in brackets{f', {size}' if size else ''}.{chosen}",
    ]


def _value(measure: Measure, row: Mapping[str, Any]) -> str:
    return measure.with_interval(row) if measure.metric in row else "–"


def _method(config: Mapping[str, Any]) -> str:
    """The algorithm or objective by name."""
    chosen = config.get("algorithm") or config.get("objective") or config.get("loop") or "training"
    if isinstance(chosen, Mapping):
        chosen = chosen.get("preset") or chosen.get("name") or "training"
    return escaped(str(chosen))


def _base(config: Mapping[str, Any]) -> str:
    """The model that the run started from; empty for random weights."""
    model = config.get("model")
    path = model.get("path") if isinstance(model, Mapping) else model
    return escaped(str(path)) if path else ""


def _without_paths(value: Any) -> Any:
    """The value with absolute paths cut to their last part: they say where things were on this machine."""
    if isinstance(value, Mapping):
        return {key: _without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_paths(one) for one in value]
    if isinstance(value, str) and value.startswith("/"):
        path = Path(value.partition(":")[0])
        return (path.parent.name if path.name in ("best_model", "model") else path.name) + value[len(str(path)) :]
    return value


def base_of_adapter(directory: Path, base: str) -> str:
    """adapter_config.json with the base model under the name that others know it by."""
    config = json.loads((directory / ADAPTER).read_text("utf-8"))
    return json.dumps({**config, "base_model_name_or_path": base}, indent=2, sort_keys=True) + "\n"
