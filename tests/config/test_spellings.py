"""Keys by their names elsewhere: the error for each names a key that exists."""

import re

import pytest

from tests.config.keys import every_key
from whet.config.spellings import EARLIER, ELSEWHERE
from whet.errors import UserError
from whet.recipe import read_any

SECTION = re.compile(r"[a-z_0-9]+(?:\.[a-z_0-9]+)*")


def test_every_earlier_key_is_gone_and_its_successor_exists() -> None:
    keys = every_key()
    assert "update.max_grad_norm" in keys
    assert "algorithm.token_mask.low" in keys
    for old, new in EARLIER.items():
        assert old not in keys, old
        assert SECTION.match(new)[0] in keys, new  # type: ignore[index]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_from_elsewhere_points_to_keys_that_exist(name: str) -> None:
    keys = every_key()
    said = ELSEWHERE[name]
    dotted = re.findall(r"[a-z_]+(?:\.[a-z_0-9]+)+", said)
    assert all(key in keys for key in dotted), said
    first = SECTION.match(said)
    assert dotted or (first and first[0] in keys) or said.startswith(("nothing", "whet train --")), said


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("update.clip_norm=1", "unknown key 'update.clip_norm': it is called update.max_grad_norm now"),
        ("stop={falls: 2}", "unknown key 'stop': it is called early_stopping now"),
        ("num_generations=4", "unknown key 'num_generations': in whet that is rollout.group"),
        ("optimizer.learning_rate=1", "unknown key 'optimizer.learning_rate': in whet that is optimizer.lr"),
        ("actor_rollout_ref.rollout.n=8", "unknown key 'actor_rollout_ref.rollout.n': in whet that is rollout.group"),
        ("trainer.total_epochs=1", "unknown key 'trainer.total_epochs': in whet that is epochs for data, or steps"),
        ("algorithm=GRPO", "did you mean 'grpo'?"),
        ("algorithm=PPO", "unknown preset 'PPO'; did you mean 'ppo'?"),
        ("learning_rate=1e-5", "unknown key 'learning_rate': in whet that is optimizer.lr"),
        ("beta=0.1", "in whet that is algorithm.kl.coefficient (online), or objective.beta (preferences)"),
        ("per_device_train_batch_size=4", "in whet that is batch_size (of all devices together), or rollout.prompts"),
        ("output_dir=here", "in whet that is whet train --out DIR"),
        ("packing=true", "in whet that is update.padding_free, which is on by default"),
        (
            "deepspeed=zero.json",
            "in whet that is distributed.sharding=zero3 (or fsdp2, which needs no package), or offload",
        ),
        ("zero_stage=3", "in whet that is distributed.sharding=fsdp2, or zero3, which needs DeepSpeed"),
        ("use_peft=true", "unknown key 'use_peft': in whet that is model.lora (rank, alpha, targets)"),
        ("model.lora.r=8", "unknown key 'model.lora.r': in whet that is model.lora.rank"),
        ("model.lora.dropout=0.1", "whet has no such key: dropout would make sampler and trainer differ"),
        ("model.lora.use_dora=true", "whet has no such key: it trains plain LoRA"),
        ("eval_strategy=steps", "unknown key 'eval_strategy': in whet that is eval.every_steps"),
        (
            "max_prompt_length=512",
            "in whet that is task.max_prompt_tokens, with task.overlong_prompts (filter, truncate)",
        ),
        ("prompt_max_len=512", "in whet that is task.max_prompt_tokens, with task.overlong_prompts"),
        ("update.max_grad_nrm=1", "unknown key 'update.max_grad_nrm'; did you mean 'max_grad_norm'?"),
    ],
)
def test_the_error_names_the_key(override: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        read_any("grpo-sorting", [override])
    assert told in str(error.value)


def test_it_is_named_inside_of_a_pipeline_too() -> None:
    with pytest.raises(UserError) as error:
        read_any("rlhf-reviews", ["stages.sft.rows=4"])
    assert str(error.value).endswith("unknown key 'stages.sft.rows': it is called batch_size now")
