"""Denoising runs: the loss of a step by hand, bytes after a resumption, samples, and everything that is refused."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.contracts.command import Zygote, only_run, write_recipe
from tests.contracts.fake_ranks import on_ranks
from tests.contracts.test_resumption import differing, outcome
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.models.load import load_model
from whet.train.explain.explanation import explain
from whet.train.rows import denoising
from whet.train.rows.denoising import DenoisingTrainer, masking_draws
from whet.train.rows.loop import build_trainer
from whet.train.rows.text_trainer import Window

CONTEXT = 12
ALONE = World.alone("cpu")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    place = tmp_path_factory.getbasetemp() / "denoising-home"
    monkeypatch.setenv("WHET_HOME", str(place))
    return place


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of short documents."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    for number in range(80):
        words = [rng.choice(["to", "be", "or", "not", "that", "is"]) for _ in range(rng.randint(1, 9))]
        (folder / f"{number:02d}.txt").write_text(" ".join(words))
    return folder


def recipe(texts: Path, **changes: Any) -> dict[str, Any]:
    return {
        "loop": "offline",
        "steps": 8,
        "seed": 3,
        "model": {"new": {"family": "llama", "layers": 1, "heads": 2, "width": 16, "context": CONTEXT}},
        "task": {"name": "corpus", "path": str(texts), "prompt_characters": 6, "answer_characters": 4},
        "objective": "denoise",
        "batch_size": 6,
        "optimizer": {"lr": 1e-2, "schedule": "linear"},
        "eval": {"every_steps": 2, "examples": 2, "max_tokens": 4, "samples": 1},
        "save": {"every_steps": 2, "keep": 9},
        "track": [],
        **changes,
    }


def trainer_of(texts: Path, world: World = ALONE, **changes: Any) -> DenoisingTrainer:
    found = build_trainer(OfflineConfig.model_validate(recipe(texts, **changes)), world, lambda _: None)
    assert isinstance(found, DenoisingTrainer)
    return found


OBJECTIVES: list[Any] = ["denoise", {"name": "denoise", "schedule": "cosine", "stratified": False}, "masked_lm"]


@pytest.mark.parametrize("documents", ["joined", "separate"])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=["linear", "cosine", "bert"])
def test_the_loss_of_a_step_by_hand(texts: Path, objective: Any, documents: str) -> None:
    task = {**recipe(texts)["task"], "documents": documents}
    trainer = trainer_of(texts, objective=objective, task=task)
    rows = trainer.rows(1)
    text = trainer.corrupted(rows)
    policy = trainer.parts.policy
    mask, total, count = policy.vocab_size - 1, 0.0, 0
    assert int(text.counted.sum()) == (int(text.chosen.sum()) if objective == "masked_lm" else 6 * CONTEXT)
    assert int(text.lengths.sum()) == 6 * CONTEXT
    assert (len(text.lengths) > 6) == (documents == "separate")
    for row, length in enumerate(text.lengths.tolist()):
        shown, targets = text.shown[row, :length], text.targets[row, :length]
        hidden = shown == mask
        if objective != "masked_lm":
            assert torch.equal(hidden, text.chosen[row, :length])
        assert torch.equal(shown[~text.chosen[row, :length]], targets[~text.chosen[row, :length]])
        logits = policy.head(policy.hidden(shown[None], torch.tensor([length])))[0, :, :mask]
        logprobs = logits.detach().double().log_softmax(dim=-1)
        for place in text.chosen[row, :length].nonzero()[:, 0].tolist():
            weight = float(text.weights[row, place])
            total -= weight * float(logprobs[place, targets[place]])
        count += int(text.counted[row, :length].sum())
    metrics, tokens = trainer.fit(rows)
    assert metrics["loss"] == pytest.approx(total / count, rel=1e-4)
    assert tokens == count


def test_a_random_token_is_never_the_mask(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the largest number that can be drawn, a replaced token is the last real id."""

    def largest(*args: Any, **settings: Any) -> dict[str, torch.Tensor]:
        found = masking_draws(*args, **settings)
        return found | {"id_draws": torch.full_like(found["id_draws"], 1 - 2**-53)}

    monkeypatch.setattr(denoising, "masking_draws", largest)
    objective = {"name": "masked_lm", "ratio": 0.9, "mask_share": 0.0, "random_share": 1.0}
    trainer = trainer_of(texts, objective=objective)
    text, mask = trainer.corrupted(trainer.rows(1)), trainer.parts.policy.vocab_size - 1
    assert int(text.chosen.sum()) > 30
    assert bool((text.shown[text.chosen] == mask - 1).all())


def test_weights_are_those_of_the_times(texts: Path) -> None:
    trainer = trainer_of(texts, objective={"name": "denoise", "least_time": 0.0})
    text = trainer.corrupted(trainer.rows(1))
    times = sorted(1 / float(row.max()) for row in text.weights if bool(row.any()))
    assert len({int(time * 6) for time in times}) == len(times)  # stratified: at most one in each sixth
    assert all(len(set(row[row > 0].tolist())) <= 1 for row in text.weights)


def test_micro_batches_and_ranks_change_no_loss(texts: Path) -> None:
    task = {**recipe(texts)["task"], "documents": "separate"}

    def step(world: World, **changes: Any) -> tuple[dict[str, float], int, dict[str, torch.Tensor]]:
        trainer = trainer_of(texts, world, task=task, **changes)
        metrics, tokens = trainer.fit(trainer.rows(1))
        return metrics, tokens, trainer.parts.policy.state_dict()

    metrics, tokens, weights = step(ALONE)
    others = [step(ALONE, update={"micro_batch_tokens": 13}), *on_ranks(2, step), *on_ranks(4, step)]
    for found, count, state in others:
        assert (found["loss"], count) == (pytest.approx(metrics["loss"], rel=1e-5), tokens)
        assert found["masked_loss"] == pytest.approx(metrics["masked_loss"], rel=1e-5)
        for name, tensor in state.items():
            assert torch.allclose(tensor, weights[name], atol=1e-4), name


def test_draws_are_named_by_seed_step_and_row() -> None:
    rows = [Window(4, row, 100 * row) for row in range(6)]
    every = masking_draws(rows, 9, seed=1, batch_size=6)
    some = masking_draws(rows[1::2], 9, seed=1, batch_size=6)
    for name, numbers in every.items():
        assert torch.equal(numbers if name == "step_draw" else numbers[1::2], some[name])
        assert float(numbers.min()) >= 0
        assert float(numbers.max()) < 1
    numbers = torch.cat([every[name].flatten() for name in ("token_draws", "kind_draws", "id_draws", "row_draws")])
    assert len(numbers.unique()) == len(numbers)
    assert every["row_places"].tolist() == [row / 6 for row in range(6)]
    for other in (
        masking_draws([row._replace(step=5) for row in rows], 9, seed=1, batch_size=6),
        masking_draws(rows, 9, seed=2, batch_size=6),
    ):
        assert not torch.equal(other["token_draws"], every["token_draws"])
        assert float(other["step_draw"]) != float(every["step_draw"])


@pytest.fixture(scope="module")
def finished(zygote: Zygote, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped, by the command."""
    folder = tmp_path_factory.mktemp("denoise")
    home = {"WHET_HOME": str(tmp_path_factory.getbasetemp() / "denoising-home")}
    zygote.run("train", write_recipe(folder / "d.yaml", recipe(texts)), "--runs", folder / "runs", environment=home)
    return only_run(folder / "runs")


def test_a_stopped_run_resumes_to_the_same_bytes(
    zygote: Zygote, finished: Path, home: Path, texts: Path, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path / "d.yaml", recipe(texts))
    environment = {"WHET_HOME": str(home)}
    process = zygote.start("train", path, "--runs", tmp_path / "runs", environment=environment)
    process.until(lambda: list((tmp_path / "runs").glob("*/checkpoints/step-000004")), "the checkpoint of step 4")
    process.kill()
    process.wait()
    run = only_run(tmp_path / "runs")
    resumed = zygote.run("train", run, "--resume", environment=environment)
    assert "resumed after step" in resumed.said()
    assert differing(outcome(run), outcome(finished)) == []


def test_a_run_measures_a_bound_and_records_samples(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    names = {"eval/bound", "eval/bound_low", "eval/bound_high", "eval/bound_bits_per_character", "eval/masked_loss"}
    assert names <= first.keys()
    assert not {"eval/loss", "eval/bits_per_character"} & first.keys()  # it has no likelihood
    assert last["eval/bound"] < first["eval/bound"]
    answers = [json.loads(line) for line in (finished / "evals" / "step-000008.jsonl").read_text().splitlines()]
    assert [answer["sample"] for answer in answers] == [0, 1, 0, 1]
    assert {answer["tokens"] for answer in answers} <= {1, 2, 3, 4}
    assert json.loads((finished / "best_model" / "config.json").read_text())["model_type"] == "bidirectional_llama"
    load_model(finished / "best_model", bidirectional=True)


def test_masked_lm_measures_no_bound(texts: Path) -> None:
    parts = trainer_of(texts, objective="masked_lm").parts
    metrics = parts.measure(parts.policy)
    assert {"eval/masked_loss", "eval/masked_accuracy", "eval/windows"} <= metrics.keys()
    assert not [name for name in metrics if "bound" in name]


def test_whet_explain_names_masks_and_weights(texts: Path, tmp_path: Path) -> None:
    from whet.recipe import read_recipe

    found = explain(read_recipe(str(write_recipe(tmp_path / "d.yaml", recipe(texts))), []))
    assert found.loss.line == "loss = Σ_{i,t} [ w·[masked]·(−log π) ] / number of tokens"
    assert "w = −α'(t)/(1 − α(t))" in found.loss.where
    assert "schedule = linear" in found.loss.where
    assert found.loss.cells["masking"].startswith("diffusion: ")
    assert found.model is not None
    policy = trainer_of(texts).parts.policy
    assert found.model.parameters == sum(weight.numel() for weight in policy.parameters())  # with the mask token


def test_whet_sample_continues_and_fills(whet: Whet, finished: Path) -> None:
    def texts_of(*arguments: object) -> list[str]:
        told = json.loads(whet("sample", finished, *arguments, "--count", 3, "--json").out)
        return [completion["text"] for completion in told["prompts"][0]["completions"]]

    for order in ("confidence", "random"):
        filled = texts_of("--infill", "to __ or _ot", "--order", order, "--steps", 2)
        assert len(filled) == 3
        assert all(text.startswith("to ") and text.endswith("ot") and "_" not in text for text in filled)
    assert texts_of("--infill", "be ###", "--blank", "#") == texts_of("--infill", "be ###", "--blank", "#")
    assert texts_of("--infill", "be ___") != texts_of("--infill", "be ___", "--seed", 1)
    assert texts_of("to b", "--max-tokens", 3) == texts_of("to b", "--max-tokens", 3, "--order", "random")
    shown = whet("sample", finished, "--infill", "to __", "--count", 1)
    assert "── 1 · 2 tokens\nto " in shown.out
    assert "log-prob" not in shown.out


def test_infill_in_python(finished: Path) -> None:
    import whet

    found = whet.infill(finished, "to __ or", n=2, temperature=0, order="confidence")
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0].startswith("to ")
    assert found[0].endswith(" or")
    model = whet.load(finished)
    assert [len(one.tokens) for one in model.generate("to", max_tokens=2, n=2)] == [2, 2]
    assert model.policy.vocab_size == model.tokenizer.vocab_size


def test_whet_eval_of_a_run(whet: Whet, finished: Path) -> None:
    result = whet("eval", finished, "--examples", 2, "--json")
    assert result.code == 0, result.err


REFUSED = [
    (("sample", "RUN", "--infill", "to be"), "has no blank to fill: write _ for every token that is missing"),
    (("sample", "RUN", "--infill", "to _", "--blank", "__"), "a blank is one character"),
    (("sample", "RUN", "--infill", "_" * 13), "a text of 13 tokens exceeds the model's context of 12"),
    (("sample", "RUN", "to", "--order", "left"), "order is 'left': use random or confidence"),
    (("sample", "RUN", "to", "--infill", "to _"), "--infill has its own text: leave the prompt and --task out"),
    (("chat", "RUN"), "is a bidirectional model, which answers no messages: use `whet sample`"),
    (("train", "grpo-sorting", "model=RUN", "steps=1"), "is a bidirectional model, which predicts masked tokens"),
    (("train", "sft-reverse", "model=RUN", "steps=1"), "is a bidirectional model, which predicts masked tokens"),
    (("train", "RECIPE", "model=RUN", "objective=lm"), "is a bidirectional model, which predicts masked tokens"),
    (("train", "RECIPE", "engine.name=vllm"), "engine.name is vllm, which samples from no bidirectional model"),
    (("train", "RECIPE", "objective.schedule=square"), "objective.schedule is 'square': use linear or cosine"),
    (("train", "RECIPE", "objective.ratio=0.2"), "objective 'denoise' has no option 'ratio'"),
    (("train", "RECIPE", "task=sorting"), "objective 'denoise' learns from a text"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED, ids=[" ".join(words)[:40] for words, _ in REFUSED])
def test_refusals(whet: Whet, finished: Path, texts: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    path = write_recipe(tmp_path / "d.yaml", recipe(texts))
    line = [word.replace("RUN", str(finished)).replace("RECIPE", str(path)) for word in words]
    line += ["--out", str(tmp_path / "out")] if line[0] == "train" else []
    assert told in refused(whet, *line)


def test_a_causal_model_fills_nothing(whet: Whet, tmp_path: Path, texts: Path) -> None:
    from whet.models.load import new_model
    from whet.models.text.tokenizers import character_tokenizer

    tokenizer, directory = character_tokenizer("abc _"), tmp_path / "causal"
    directory.mkdir()
    new_model(
        "llama", vocab_size=tokenizer.vocab_size, layers=1, heads=1, width=8, context=CONTEXT, seed=0, eos=0
    ).save(directory)
    tokenizer.save(directory)
    for words in (("--infill", "a_b"), ("abc", "--order", "random"), ("abc", "--steps", 3)):
        assert "is a causal model, which continues text from left to right" in refused(
            whet, "sample", directory, *words
        )
    changed = recipe(texts) | {"model": str(directory)}
    told = refused(whet, "train", write_recipe(tmp_path / "d.yaml", changed), "--out", tmp_path / "out")
    assert "is a causal model, whose tokens see none after them" in told
