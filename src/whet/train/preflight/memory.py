"""Whether a run fits into the memory of the GPU, by the planner; no GPU is needed where one is named."""

from __future__ import annotations

import torch

from whet.errors import UserError
from whet.recipe import Recipe
from whet.train.plan.gpus import GIBI, GPU, detected, find_gpu
from whet.train.plan.recipe_plan import Asked, plan_recipe
from whet.train.preflight.results import CheckFailed, NotTried


def memory_fits(recipe: Recipe, gpu: str = "") -> str:
    """The plan of the recipe on this machine's GPU, or on the named one."""
    try:
        plan = plan_recipe(recipe, Asked(gpu=_gpu(gpu)))
    except UserError as error:
        raise NotTried(str(error)) from error
    need, has = (size / GIBI for size in (plan.plan.peaks.needed, plan.plan.gpu.memory))
    if not plan.plan.fits:
        changes = f": {' '.join(plan.advice[0].overrides)} fits" if plan.advice else ""
        raise CheckFailed(f"needs {need:.1f} GiB of the {has:.1f} GiB of {plan.plan.gpu.name}{changes}; see whet plan")
    return f"needs {need:.1f} GiB of the {has:.1f} GiB of {plan.plan.gpu.name}"


def _gpu(name: str) -> GPU:
    if name:
        return find_gpu(name)
    if not torch.cuda.is_available():
        raise NotTried("there is no GPU here: name one with --gpu, e.g. --gpu 24GiB")
    device = torch.cuda.get_device_properties(0)
    return detected(device.name, device.total_memory)
