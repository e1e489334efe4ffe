"""Which files bugs are planted in, and the tests that must notice: those that run in this process, and soon."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "whet"

_ALGORITHMS = ("tests/algorithms/test_table.py", "tests/algorithms")
_TABLES = (
    "tests/algorithms/test_table.py",
    "tests/algorithms/test_preference_table.py",
    "tests/test_docs.py",
    "tests/test_docs_preferences.py",
)
_STEP = ("tests/train/test_annotate.py", "tests/train/test_update.py", "tests/train/test_critic.py")
# Below src/whet → files or folders of tests. What runs at the import is put before them in this order.
TESTS: dict[str, tuple[str, ...]] = {
    "algorithms/advantages.py": _ALGORITHMS,
    "algorithms/cells.py": (*_TABLES, *_ALGORITHMS),
    "algorithms/masking.py": _ALGORITHMS,
    "algorithms/off_policy.py": ("tests/off_policy/test_targets.py", "tests/off_policy/test_updates.py"),
    "algorithms/policy_loss.py": _ALGORITHMS,
    "algorithms/preference/losses.py": _ALGORITHMS,
    "algorithms/preference/metrics.py": _ALGORITHMS,
    "algorithms/preference/preference_table.py": (*_TABLES, *_ALGORITHMS, "tests/train/test_own_objective.py"),
    "algorithms/preference/reward_losses.py": _ALGORITHMS,
    "algorithms/selection.py": _ALGORITHMS,
    "algorithms/table.py": (*_TABLES, *_ALGORITHMS),
    "batching.py": ("tests/test_batching.py", "tests/train/test_passes.py", "tests/contracts/test_additivity.py"),
    "models/logprobs.py": (
        *("tests/models/test_logprobs.py", "tests/models/test_values.py", "tests/models/test_chosen.py"),
        *("tests/models/test_packed.py", "tests/contracts/test_alignment.py"),
    ),
    "evaluate/statistics.py": (
        *("tests/evaluate/test_statistics.py", "tests/evaluate/test_best_of_n.py", "tests/evaluate/test_evaluation.py"),
    ),
    "data/split.py": ("tests/data/test_split.py",),
    "train/online/annotate.py": (*_STEP, "tests/train/test_annotated.py", "tests/train/test_ranks.py"),
    "train/online/old_logprobs.py": (
        *("tests/train/test_agreement.py", *_STEP, "tests/train/test_annotated.py", "tests/train/test_ranks.py"),
    ),
    "train/online/update.py": (*_STEP, "tests/train/test_ranks.py", "tests/train/test_moving.py"),
    "train/online/sampling.py": (
        "tests/train/test_collect.py",
        "tests/train/test_describe.py",
        "tests/train/test_gather.py",
    ),
    "train/online/critic.py": ("tests/train/test_critic.py", "tests/train/test_annotate.py"),
    "train/online/reference.py": ("tests/train/test_reference.py",),
    "train/optimizers/optimizer.py": (
        "tests/train/test_optim.py",
        "tests/train/test_cells.py",
        "tests/test_own_cells.py",
    ),
    "train/setup/epochs.py": ("tests/train/test_deck.py", "tests/train/test_epochs_of_data.py"),
    "train/rows/units.py": ("tests/train/test_units.py", "tests/train/test_whole.py"),
    "train/rows/examples.py": ("tests/train/test_encode.py", "tests/train/test_material.py"),
    "train/rows/reward_tokens.py": ("tests/train/test_reward_rows.py",),
    "train/rows/preference.py": ("tests/train/test_preferring_logged.py",),
    "train/rows/reward_training.py": ("tests/train/test_rewarding_logged.py",),
    "train/rows/sft.py": ("tests/train/test_supervised.py", "tests/train/test_held_out_intervals.py"),
    "train/online/learner.py": (
        *(
            "tests/train/test_memory.py",
            "tests/train/test_offloading.py",
            "tests/train/test_reference.py",
            "tests/train/test_old.py",
        ),
    ),
}
WHOLE_ROOMS = ("algorithms",)  # every file of these is a target
EMPTY = {"algorithms/__init__.py", "algorithms/preference/__init__.py"}  # nothing to plant a bug in


def tests_of(file: str) -> tuple[str, ...]:
    """The tests of a target, as paths from the root."""
    return TESTS[file]


def chosen(only: list[str]) -> list[str]:
    """The targets whose name has one of these parts, or all."""
    return [file for file in TESTS if not only or any(part in file for part in only)]


def source(file: str) -> str:
    """The text of a target."""
    return (SOURCE / file).read_text("utf-8")
