"""`whet explain`: every number worked out by hand from the recipe's text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from whet.config import NewModel
from whet.config.model_config import ModelConfig
from whet.errors import UserError
from whet.models.decoder.families import FAMILIES
from whet.models.layers.decoder_config import parameter_count
from whet.models.load import new_model
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer
from whet.recipe import read_recipe
from whet.train.explain.explanation import explain
from whet.train.online.critic import Critic
from whet.train.setup.build import require_family
from whet.train.setup.new_model_shape import new_decoder_config

# Level 2 of arithmetic: at most two digits each, so prompts of 4 to 6 characters, spelt with ten digits, + and =.
ONLINE = """
steps: 105
model: {new: {family: gpt2, layers: 2, heads: 2, width: 8, context: 16}}
task: {name: arithmetic, level: 2}
algorithm: {preset: grpo, clip: {high: 0.28}, kl: {coefficient: 0.04, estimator: k3}}
rollout: {prompts: 10, group: 4, max_tokens: 5}
update: {epochs: 2, minibatches: 3}
optimizer: {lr: 1e-3, schedule: linear, warmup_steps: 5}
eval: {every_steps: 50, examples: 20, max_tokens: 5, samples: 4, ks: [1, 4]}
save: {every_steps: 35}
"""
OFFLINE = """
loop: offline
steps: 10
model: {new: {family: llama, layers: 1, heads: 1, width: 6, context: 32}}
task: {name: reverse, level: 1}
batch_size: 16
optimizer: {warmup_steps: 20}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def recipe(text: str, name: str = "mine") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return recipe


def _json(whet: Whet, *arguments: object) -> dict[str, Any]:
    result = whet("explain", *arguments, "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_the_numbers_of_an_online_recipe(whet: Whet, write: Any) -> None:
    found = _json(whet, write(ONLINE))

    assert found["step"] == {
        "prompts": 10,
        "group": 4,
        "sequences": 40,  # 10 · 4
        "greedy": 0,
        "rounds": 1,
        "epochs": 2,
        "minibatches": 3,
        "updates": 6,  # 2 · 3
        "target_kl": None,
        "sequences_per_update": [12, 16],  # ten prompts in three parts: 3, 4 and 3
        "oldest": 5,  # five updates have been made when the sixth begins
    }
    tokens = found["tokens"]
    assert tokens["measured_on"] == 10
    assert 4 <= tokens["prompt_mean"] <= tokens["prompt_longest"] <= 6
    assert tokens["trained"] == 200  # 40 · 5
    assert tokens["total"] == round(40 * (tokens["prompt_mean"] + 5))
    model = found["model"]
    # Embeddings (12 characters and the end) 13·8 and positions 16·8; in each of 2 layers: attention 4·(8·8+8), MLP
    # 8·32+32 and 32·8+8, two norms of 16; a last norm of 16. The head is the embedding.
    parameters = 13 * 8 + 16 * 8 + 2 * (288 + 288 + 264 + 32) + 16
    assert model["parameters"] == parameters
    assert model["weights"] == model["gradients"] == model["reference"] == 4 * parameters
    assert model["optimizer"] == 8 * parameters
    assert model["critic"] == 0
    assert found["schedule"] == {
        "steps": 105,
        "updates": 630,
        # Warm-up: 1/5 of the rate at step 1, all of it at step 5; then 100 steps fall to 1/100 of it.
        "rates": [pytest.approx(2e-4), pytest.approx(1e-3), pytest.approx(1e-5)],
        "optimizer": "adamw",
        "shape": "5 steps of warm-up, 100 of linear decay",
        "critic_rate": None,
        "cold_start": None,
        "critic_alone": 0,
        "evaluations": 4,  # before step 1, after 50, 100 and 105
        "eval_examples": 20,
        "eval_sequences": 100,  # 20 greedy, 80 sampled
        "checkpoints": 3,  # after 35, 70 and 105
    }
    assert found["without_effect"] == {}
    assert found["notes"] == []


def test_the_loss_and_its_cells_are_in_the_output(whet: Whet, write: Any) -> None:
    loss = _json(whet, write(ONLINE))["loss"]
    assert loss["line"] == (
        "loss = Σ_i (1/T_i) Σ_t [ −min(ρA, clip(ρ, 1−low, 1+high)·A) + 0.04·(exp(−d) − 1 + d) ] / number of sequences"
    )
    assert loss["critic"] == ""
    assert set(loss["cells"]) == {"advantage", "surrogate", "weighting", "kl", "paper"}
    shown = whet("explain", write(ONLINE)).out
    assert f"\n  {loss['line']}\n" in shown
    assert all(f" {meaning}\n" in shown for meaning in loss["where"])


PARAMETERS = 13 * 8 + 16 * 8 + 2 * (288 + 288 + 264 + 32) + 16  # of ONLINE's model, as above; its head is the embedding


@pytest.mark.parametrize(
    ("reference", "numbers"),
    [("start", PARAMETERS), ("sync", PARAMETERS), ("random", PARAMETERS), ("bigram", 13 * 13), ("uniform", 0)],
)
def test_the_memory_of_a_reference(whet: Whet, write: Any, reference: str, numbers: int) -> None:
    found = _json(whet, write(ONLINE), f"algorithm.kl.reference={reference}")
    assert found["model"]["reference"] == 4 * numbers


def test_a_bigram_of_too_many_tokens_is_noted(write: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    new_model("gpt2", vocab_size=8193, layers=1, heads=1, width=2, context=16, seed=0).save(tmp_path / "model")
    character_tokenizer("0123456789+=").save(tmp_path / "model")
    overrides = ("algorithm.kl.reference=bigram", "model.new=null", f"model.path={tmp_path / 'model'}")
    found = explain(read_recipe(str(write(ONLINE)), overrides))
    assert found.model is not None
    assert found.model.reference == 4 * 8193**2
    assert any("at most 8192 tokens" in note for note in found.notes)


def test_the_memory_of_a_critic(whet: Whet, write: Any) -> None:
    one = ("algorithm=ppo", "update.epochs=1")
    # A value head has a number per width and one more; all that is trained has a weight, a gradient and two moments.
    shared = _json(whet, write(ONLINE), *one, "critic.model=shared")["model"]
    assert shared["critic"] == 16 * 9
    separate = _json(whet, write(ONLINE), *one)["model"]
    assert separate["critic"] == 16 * (PARAMETERS + 9)
    # A Llama's head is not its embedding: in the critic it is kept, 13 · 8 numbers, but not trained.
    llama = _json(whet, write(ONLINE), *one, "model.new.family=llama")["model"]
    assert llama["critic"] == 16 * (llama["parameters"] + 9) - 12 * 13 * 8


def test_the_memory_of_a_reward_model(whet: Whet, write: Any, tmp_path: Path) -> None:
    policy = new_model("llama", vocab_size=13, layers=1, heads=2, width=8, context=16, seed=0)
    model = new_reward_model(policy, RewardSettings(kind="preference"), seed=0, pad=12)
    (tmp_path / "reward").mkdir()
    model.save(tmp_path / "reward")
    found = _json(whet, write(ONLINE), f"reward.model={tmp_path / 'reward'}")["model"]
    # A head of one row in the place of the one over the vocabulary, whose 13 rows it does not have.
    assert found["reward"] == 4 * (sum(p.numel() for p in policy.parameters()) - 13 * 8 + 8)
    assert _json(whet, write(ONLINE), "reward.model=org/nowhere")["model"]["reward"] is None


@pytest.mark.parametrize("kind", ["separate", "shared"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_memory_of_a_critic_is_what_training_allocates(write: Any, tmp_path: Path, family: str, kind: str) -> None:
    """Counted on the critic itself, on a model from disk."""
    model = new_model(family, vocab_size=13, layers=1, heads=2, width=8, context=16, seed=0)
    directory = tmp_path / "model"
    directory.mkdir()
    model.save(directory)
    character_tokenizer("0123456789+=").save(directory)
    overrides = ("algorithm=ppo", f"critic.model={kind}", "model.new=null", f"model.path={directory}")
    recipe = read_recipe(str(write(ONLINE)), overrides)
    critic = Critic(model, recipe.config)
    kept = sum(p.numel() for p in critic.parameters())
    trained = sum(p.numel() for group in critic.optimizer.param_groups for p in group["params"])
    found = explain(recipe).model
    assert found is not None
    assert found.critic == 4 * (kept + 3 * trained)
    assert found.total == 16 * found.parameters + found.joined + found.critic


OWN_KEEP = f"algorithm.dynamic_sampling={Path(__file__).parents[1] / 'own_cells.py'}:differing"


def test_what_a_step_samples_besides(whet: Whet, write: Any) -> None:
    one = ("update.epochs=1", "update.minibatches=1")
    assert _json(whet, write(ONLINE), "algorithm=remax", *one)["step"]["greedy"] == 10
    step = _json(whet, write(ONLINE), "algorithm=dapo", "rollout.max_resamples=2")["step"]
    assert (step["greedy"], step["rounds"]) == (0, 3)
    shown = whet("explain", write(ONLINE), "algorithm=remax", OWN_KEEP, "rollout.max_resamples=2", *one).out
    assert "10 greedy sequences more" in shown
    assert "at most 2 in place of dropped groups, 150 sequences in all" in shown  # 3 · (40 + 10)
    shown = whet("explain", write(ONLINE), "update.target_kl=0.02").out
    assert "2 × 3 = 6 optimizer steps" in shown
    assert "none after the policy has moved by 0.02 nats a token" in shown


def test_the_schedule_of_a_critic(whet: Whet, write: Any) -> None:
    critic = ("algorithm=ppo", "critic.lr=1e-2", "critic.warmup_steps=7")
    schedule = _json(whet, write(ONLINE), *critic)["schedule"]
    assert schedule["critic_rate"] == pytest.approx(1e-2)
    assert schedule["critic_alone"] == 7
    shown = whet("explain", write(ONLINE), *critic).out
    assert "learning rate 0.01 at most, alone in the first 7 steps" in shown
    assert "critic loss = 0.5·Σ_{i,t} [ ½·max(" in shown
    cold = whet("explain", write(ONLINE), "cold_start={steps: 15, batch_size: 8, lr: 2e-3}").out
    assert "15 supervised steps × 8 rows, learning rate 0.002, before all else" in cold


def test_the_numbers_of_an_offline_recipe(whet: Whet, write: Any) -> None:
    found = _json(whet, write(OFFLINE), "update.epochs=3", "update.max_grad_norm=2", "optimizer.schedule=cosine")
    assert found["loss"]["line"] == "loss = Σ_{i,t} [ −log π ] / number of tokens"
    assert found["step"] == {
        "prompts": 16,
        "group": 1,
        "sequences": 16,
        "greedy": 0,
        "rounds": 1,
        "epochs": 1,
        "minibatches": 1,
        "updates": 1,
        "target_kl": None,
        "sequences_per_update": [16, 16],
        "oldest": 0,
    }
    assert found["tokens"]["completion"] == 4.0  # three letters and the end of the sequence
    assert found["tokens"]["trained"] == 64
    assert found["model"]["reference"] == 0
    assert found["without_effect"] == {
        "update.epochs": "the offline loop takes one optimizer step per batch",
        "optimizer.schedule": "the run ends with the warm-up, before the rate could fall",
    }
    (note,) = [note for note in found["notes"] if "warmup" in note]
    assert note.endswith("the learning rate reaches 5e-06, never 1e-05")  # 10/20 of the default


def test_the_numbers_of_a_recipe_on_a_text(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be, or not to be\n" * 400)
    words = (f"data={tmp_path / 'text.txt'}", "batch_size=8", "model.new.context=16")
    tokens = _json(whet, "lm-char", *words)["tokens"]
    assert (tokens["trained"], tokens["total"], tokens["prompt_mean"]) == (8 * 16, 8 * 16, None)
    shown = whet("explain", "lm-char", *words).out
    assert re.search(r"\n  windows +8\n", shown)
    assert re.search(r"\n  trained tokens +128\n", shown)
    assert re.search(r"\n  KV cache +", shown)
    assert "prompt tokens" not in shown
    assert "DAPO" not in shown
    masked = whet("explain", "lm-denoise", *words).out
    assert re.search(r"\n  trained tokens +the masked ones of 128\n", masked)
    assert "KV cache" not in masked


def test_only_written_keys_without_effect_are_listed_and_all_of_them(whet: Whet, write: Any) -> None:
    text = ONLINE + "reward: {time_limit_seconds: 5}\n"
    changes = ("algorithm.kl.coefficient=0", "algorithm.kl.place=reward", "update.epochs=1", "update.minibatches=1")
    assert set(_json(whet, write(text), *changes)["without_effect"]) == {
        "algorithm.clip.high",  # one update per rollout
        "algorithm.kl.estimator",
        "algorithm.kl.place",
        "reward.time_limit_seconds",
    }
    # Two updates bring the clipping back; a user's own reward or task runs in a worker, which has a limit.
    changes = ("algorithm.kl.coefficient=0", "update.minibatches=1", "reward.functions=[rewards.py:score]")
    assert set(_json(whet, write(text), *changes)["without_effect"]) == {"algorithm.kl.estimator"}
    # Another surrogate does not read clip's options, another advantage not those of standardize.
    changes = ("algorithm.surrogate=reinforce", "algorithm.advantage=center", "algorithm.standardize.epsilon=1e-4")
    one = ("update.epochs=1", "update.minibatches=1", "reward.functions=[rewards.py:score]")
    assert _json(whet, write(text), *changes, *one)["without_effect"] == {
        "algorithm.clip.high": "algorithm.surrogate is reinforce",
        "algorithm.standardize.epsilon": "algorithm.advantage is center",
    }


def test_a_clip_range_without_width_is_not_called_harmless(whet: Whet, write: Any) -> None:
    changes = ("update.epochs=1", "update.minibatches=1", "algorithm.clip.low=0")
    assert _json(whet, write(ONLINE), *changes)["without_effect"] == {}


@pytest.mark.parametrize(("steps", "listed"), [(5, True), (6, True), (7, False)])
def test_a_schedule_needs_two_steps_after_the_warm_up(whet: Whet, write: Any, steps: int, listed: bool) -> None:
    found = _json(whet, write(ONLINE), f"steps={steps}")
    assert ("optimizer.schedule" in found["without_effect"]) == listed
    assert (found["schedule"]["rates"][2] == 1e-3) == listed  # the rate never falls where the key is listed


def test_what_is_allowed_but_hardly_meant_is_noted(whet: Whet, write: Any) -> None:
    changes = ("eval.ks=[]", "eval.examples=1000000", "rollout.max_tokens=14", "eval.max_tokens=14", "task.level=1")
    notes = _json(whet, write(ONLINE), *changes)["notes"]
    assert len(notes) == 3
    assert "without eval.ks no pass@k" in notes[0]
    assert notes[1].startswith("there are ")
    assert notes[2] == (
        "a prompt has 4 tokens and the model's context is 16: completions are truncated before rollout.max_tokens"
    )
    notes = _json(whet, write(ONLINE), "model.new.context=4")["notes"]
    assert any("the run will fail" in note for note in notes)


def test_a_family_that_no_table_has_is_named_before_anything_is_made(whet: Whet, write: Any, tmp_path: Path) -> None:
    told, wrong = f"unknown model family 'lama': choose one of {', '.join(FAMILIES)}", "model.new.family=lama"
    assert told in refused(whet, "explain", write(ONLINE), wrong)
    assert told in refused(whet, "train", write(ONLINE), wrong, "--runs", tmp_path / "made")
    assert not [*(tmp_path / "made").glob("*")]
    with pytest.raises(UserError, match=told):  # what a pipeline asks of all its runs before the first
        require_family(ModelConfig.model_validate({"new": {"family": "lama"}}))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shape_is_that_of_the_model_that_will_be_made(family: str) -> None:
    new = NewModel.model_validate({"family": family, "layers": 3, "heads": 2, "width": 20, "context": 24})
    made = new_model(family, vocab_size=17, layers=3, heads=2, width=20, context=24, seed=0)
    assert new_decoder_config(new, 17) == made.config
    assert parameter_count(made.config) == sum(parameter.numel() for parameter in made.parameters())


def test_a_model_on_disk_is_counted_from_its_headers(whet: Whet, write: Any, tmp_path: Path) -> None:
    directory = bigram_model(tmp_path / "model", {}, alphabet="0123456789+=")
    found = _json(whet, write(ONLINE), "model.new=null", f"model.path={directory}")
    # Width 14: embedding and head 13·14 each; attention 4·14·14; MLP 3·14·40 (two thirds of 4·14, in eights); 3 norms.
    assert found["model"]["parameters"] == 2 * 13 * 14 + 4 * 14 * 14 + 3 * 14 * 40 + 3 * 14
    assert found["model"]["context"] == 32
    assert found["missing"] == ""


def test_a_model_that_cannot_be_pulled_is_an_error(whet: Whet, write: Any, tmp_path: Path) -> None:
    assert "unknown model 'nonexistent'" in refused(whet, "explain", write(ONLINE), "model=nonexistent")
    assert f"no directory {tmp_path}/absent" in refused(whet, "explain", write(ONLINE), f"model={tmp_path}/absent")


def test_a_reward_model_or_a_reference_that_cannot_be_pulled_is_an_error_too(
    whet: Whet, write: Any, tmp_path: Path
) -> None:
    line = refused(whet, "explain", write(ONLINE), "reward.model=nonexistent")
    assert line.startswith("reward.model: unknown model 'nonexistent'")
    line = refused(whet, "explain", write(ONLINE), f"reward.model={tmp_path}/absent")
    assert line.startswith(f"reward.model: no directory {tmp_path}/absent")
    shown = whet("explain", write(ONLINE), "reward.model=org/absent")
    assert shown.code == 0
    assert "not here yet" in shown.out
    model = bigram_model(tmp_path / "model", {}, alphabet="12")
    rows = [{"prompt": "1" * n, "chosen": "2", "rejected": "1"} for n in range(1, 9)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (f"model={model}", f"data={tmp_path / 'pairs.jsonl'}", f"reference={tmp_path}/absent")
    assert refused(whet, "explain", "dpo", *words).startswith(f"reference: no directory {tmp_path}/absent")


def test_a_model_that_is_not_pulled_leaves_its_numbers_unknown(whet: Whet, write: Any, tmp_path: Path) -> None:
    arguments = (write(ONLINE), "model.new=null", "model.path=org/absent")
    found = _json(whet, *arguments)
    assert found["model"] is None
    assert "absent" in found["missing"]
    assert found["tokens"]["prompt_mean"] is None
    assert found["tokens"]["trained"] == 200
    shown = whet("explain", *arguments)
    assert shown.code == 0
    assert "unknown           no directory" in shown.out


def test_the_page_for_people_has_the_same_numbers(whet: Whet, write: Any) -> None:
    shown = whet("explain", write(ONLINE), "reward.time_limit_seconds=2").out
    for line in (
        "10 prompts × 4 = 40 sequences",
        "2 × 3 = 6 optimizer steps on 12 to 16 sequences each",
        "off-policy: rollouts are 0 updates old at the first update, 5 at the last",
        "at most 200",
        "105, 630 optimizer steps",
        "4 × 20 greedy answers and 80 samples",
        "reward.time_limit_seconds",
    ):
        assert line in shown
    stale = whet("explain", write(ONLINE), "asynchronous.staleness=2").out
    assert "off-policy: rollouts are up to 12 updates old at the first update, 17 at the last" in stale
    assert "π_old is the policy that sampled, up to 2 steps before" in stale
    sampled = "whole draws with weights that are at most 2 steps old"
    assert f"rollout workers   1, processes of this machine; they sample {sampled}" in stale
    alone = whet("explain", write(ONLINE), "update.epochs=1", "update.minibatches=1").out
    assert "1 optimizer step on all of them" in alone
    assert "on-policy" in alone


def test_the_processes_are_said(whet: Whet, write: Any) -> None:
    def processes(*words: str) -> list[str]:
        lines = whet("explain", write(ONLINE), *words).out.splitlines()
        return [line.split(maxsplit=1)[1] for line in lines if line.startswith(("  trainers ", "  rollout workers "))]

    (alone,) = processes()
    assert alone.endswith("each has its share of every step, and all weights, gradients and moments below")
    placed = whet("explain", write(ONLINE), "placement.reward=[cuda:1, cuda:2]").out
    assert "  reward            on cuda:1 and cuda:2, apart from the trainers\n" in placed
    spread, several = processes(
        "distributed={sharding: fsdp2, replicas: 2, cpu_offload: true}",
        "asynchronous={staleness: 1, workers: 9, parts: 3}",
    )
    assert "divided among those of one of 2 groups, which stay in host memory (fsdp2)" in spread
    counted = (
        "6 (of asynchronous.workers=9: no more have work), processes of this machine; they sample draws in 3 parts"
    )
    assert counted in several
    (_, vllm) = processes("engine.name=vllm", "asynchronous={staleness: 1}", "algorithm.preset=grpo")
    assert "1, processes of this machine, each with a vLLM of its own; they sample whole draws" in vllm
    judged = whet("explain", write(ONLINE), "reward.model={path: someone/model, workers: 2}").out
    beside = "2 processes, each with a copy of the reward model, beside each trainer, on CPUs"
    assert f"  reward workers    {beside}\n" in judged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-recipe",), "no recipe 'no-such-recipe'"),
        (("RECIPE", "rollout.promts=3"), "did you mean 'prompts'"),
        (("RECIPE", "task.level=9"), "level is 9, must be between 1 and 5"),
        (("RECIPE", "update.minibatches=11"), "a group is never split"),
        (("RECIPE", "steps=-1"), "steps"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    whet: Whet, write: Any, arguments: tuple[str, ...], message: str
) -> None:
    path = write(ONLINE)
    result = whet("explain", *(path if argument == "RECIPE" else argument for argument in arguments))
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
