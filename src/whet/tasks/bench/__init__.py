"""The reward bench: attacks a reward before anything is trained with it. `check_reward` is its entry."""

from whet.tasks.bench.reward_bench import check_reward, check_subject
from whet.tasks.bench.reward_findings import Finding, Report

__all__ = ["Finding", "Report", "check_reward", "check_subject"]
