"""The reward bench: attacks a reward before anything is trained with it. `check_reward` is its entry."""

from whet.tasks.bench.findings import Finding, Report
from whet.tasks.bench.reward_bench import check_reward, check_subject

__all__ = ["Finding", "Report", "check_reward", "check_subject"]
