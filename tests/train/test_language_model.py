"""Language modelling on a corpus: alignment, the loss against NumPy, windows, held-out bits, ranks, resuming."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from tests.data.corpus.texts import invented, written
from tests.small import small_model
from whet.cli.progress import SilentProgress
from whet.config import OfflineConfig
from whet.data.corpus.corpus_task import CorpusTask
from whet.distributed.world import World
from whet.errors import UserError
from whet.evaluate.held_out_text import HeldOutText, text_metrics
from whet.models.text.tokenizers import character_tokenizer
from whet.recipe import Recipe, read_recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.rows.language_model import LanguageModelTrainer
from whet.train.rows.text_trainer import Window
from whet.train.setup.corpora import short_horizon_note, window_starts
from whet.train.start import resume_run, start_run

ALONE = World.init("cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def config_of(tmp_path: Path, **changes: Any) -> OfflineConfig:
    recipe: dict[str, Any] = {
        "loop": "offline",
        "steps": 6,
        "model": {"new": {"family": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 16}},
        "task": {
            "name": "corpus",
            "path": str(written(tmp_path / "text.txt", invented(300))),
            "prompt_characters": 4,
            "answer_characters": 4,
        },
        "objective": "lm",
        "batch_size": 6,
        "optimizer": {"lr": 3e-3},
        "eval": {"every_steps": 3, "examples": 2, "max_tokens": 4},
        "save": {"every_steps": 2, "keep": 5},
        "track": [],
        "device": "cpu",
        **changes,
    }
    found = validate(recipe, where="here")
    assert isinstance(found, OfflineConfig)
    return found


def trained(config: OfflineConfig, root: Path) -> Path:
    return start_run(Recipe(name="lm", config=config, written={}), root, lambda *_: SilentProgress(), path=root / "run")


def test_windows_are_splitmix_of_seed_and_step() -> None:
    def uniform(key: int, position: int) -> float:
        """SplitMix64 (Steele et al. 2014) in Python's integers."""
        z = (key + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    for seed, step in ((0, 1), (3, 77), (2**40, 5)):
        expected = [math.floor(uniform((seed << 32) + step, row) * (1000 - 64)) for row in range(5)]
        assert window_starts(1000, 5, 64, seed=seed, step=step).tolist() == expected
    with pytest.raises(UserError, match="the training text has 64 tokens, and a window"):
        window_starts(64, 5, 64, seed=0, step=1)


def test_the_loss_is_that_of_every_next_token(tmp_path: Path) -> None:
    """Against a softmax in NumPy: a shift by one, or a token that is left out, would show."""
    config = config_of(tmp_path)
    trainer = LanguageModelTrainer(config, ALONE, lambda _: None)
    starts = trainer.rows(1)
    windows = np.stack([trainer.corpus.ids[start : start + 17].astype(int) for start in [row.start for row in starts]])
    policy = trainer.parts.policy
    with torch.no_grad():
        logits = policy(torch.from_numpy(windows[:, :16]), torch.full((6,), 16)).double().numpy()
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(logprobs, windows[:, 1:, None], axis=-1).mean()
    metrics, tokens = trainer.fit(starts)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)
    assert tokens == 6 * 16


@pytest.mark.parametrize("settings", [{"padding_free": False}, {"micro_batch_tokens": 40}, {}])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_no_batching_changes_the_gradient(tmp_path: Path, settings: dict[str, Any], family: str) -> None:
    new = {"family": family, "layers": 2, "heads": 2, "width": 32, "context": 16}
    found = []
    for update in ({"micro_batch_tokens": 17, "padding_free": False}, settings):
        config = config_of(tmp_path, update={**update, "max_grad_norm": 1e9}, model={"new": new})
        trainer = LanguageModelTrainer(config, ALONE, lambda _: None)
        metrics, _ = trainer.fit(trainer.rows(1))
        found.append((metrics["loss"], [p.grad for p in trainer.parts.policy.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_ranks_read_the_windows_of_one_process(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    alone = LanguageModelTrainer(config, ALONE, lambda _: None)
    expected = alone.fit(alone.rows(2))

    def step(world: World) -> tuple[dict[str, float], int]:
        trainer = LanguageModelTrainer(config, world, lambda _: None)
        return trainer.fit(trainer.rows(2))

    for metrics, tokens in on_ranks(2, step):
        assert tokens == expected[1]
        assert metrics["loss"] == pytest.approx(expected[0]["loss"], abs=1e-6)
        assert metrics["grad_norm"] == pytest.approx(expected[0]["grad_norm"], rel=1e-4)


def test_separate_documents_do_not_see_each_other(tmp_path: Path) -> None:
    for number in range(30):
        written(tmp_path / "f" / f"{number:02}.txt", invented(1, seed=number)[: 5 + number % 7])
    task = {"name": "corpus", "path": str(tmp_path / "f"), "prompt_characters": 2, "answer_characters": 2}
    trainer = LanguageModelTrainer(
        config_of(tmp_path, task={**task, "documents": "separate", "held_out_share": 0.2}), ALONE, lambda _: None
    )
    rows = trainer.sequences([Window(1, 0, 0)])
    documents = trainer.corpus.documents.tolist()
    first = trainer.corpus.ids[: documents[1]].tolist()
    assert rows.tokens[0, : rows.lengths[0]].tolist() == first  # the first document and its end
    assert rows.lengths.sum() in (16, 17)  # a last part of one token is left out
    assert not rows.mask[:, 0].any()
    assert int(rows.mask.sum()) == int(rows.lengths.sum()) - len(rows.lengths)
    # The loss of a part is that of the part alone.
    with torch.no_grad():
        alone = trainer.parts.policy(torch.tensor([first]), torch.tensor([len(first)]))
        together = trainer.parts.policy(rows.tokens, rows.lengths)
    torch.testing.assert_close(together[0, : len(first)], alone[0], rtol=0, atol=1e-5)


def test_held_out_text_in_nats_bits_and_hits() -> None:
    model, _ = small_model("gpt2", context=8)
    windows = torch.randint(0, model.vocab_size, (5, 9), generator=torch.Generator().manual_seed(0))
    text = HeldOutText(windows=windows, tokens_per_character=0.5, tokens_per_byte=0.25)
    with torch.no_grad():
        logits = model(windows[:, :8], torch.full((5,), 8)).double()
    nats = -torch.log_softmax(logits, dim=-1).gather(-1, windows[:, 1:, None]).mean().item()
    found = text_metrics(model, text, ALONE)
    assert found["eval/loss"] == pytest.approx(nats, abs=1e-5)
    assert found["eval/bits_per_character"] == pytest.approx(nats / math.log(2) / 2, abs=1e-5)
    assert found["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / 4, abs=1e-5)
    assert found["eval/token_accuracy"] == pytest.approx((logits.argmax(-1) == windows[:, 1:]).double().mean().item())
    assert found["eval/token_accuracy_low"] <= found["eval/token_accuracy"] <= found["eval/token_accuracy_high"]
    assert found["eval/windows"] == 5
    for ranked in on_ranks(2, lambda world: text_metrics(model, text, world)):
        assert ranked == pytest.approx(found, abs=1e-9)


def test_a_model_that_knows_the_text_has_no_loss_on_it(tmp_path: Path) -> None:
    """A periodic text is learned to almost nothing; shifted by one token the same model fails."""
    path = written(tmp_path / "cycle.txt", "abcdefgh" * 200)
    task = {"name": "corpus", "path": str(path), "prompt_characters": 4, "answer_characters": 4}
    config = config_of(tmp_path, task=task, steps=120, optimizer={"lr": 1e-2}, eval={"every_steps": 120, "examples": 2})
    run = RunDirectory.open(trained(config, tmp_path), is_writer=False)
    last = run.metrics()[-1]
    assert last["eval/loss"] < 0.25  # the first characters of a window could go on in any way but for their own letter
    assert last["eval/token_accuracy"] > 0.99
    trainer = LanguageModelTrainer(config, ALONE, lambda _: None)
    trainer.parts.policy.load_state_dict(trainer.parts.load(run.path / "best_model").state_dict())
    windows = torch.from_numpy(trainer.corpus.windows(np.array([0]), 17))
    shifted = torch.cat([windows[:, :1], windows[:, :-1]], dim=1)
    for tokens, low, high in ((windows, 0.0, 0.25), (shifted, 0.5, 20.0)):
        text = HeldOutText(windows=tokens, tokens_per_character=1.0, tokens_per_byte=1.0)
        assert low <= text_metrics(trainer.parts.policy, text, ALONE)["eval/loss"] < high


def test_a_resumed_run_is_the_whole_run(tmp_path: Path) -> None:
    whole = trained(config_of(tmp_path), tmp_path / "a")
    short = trained(config_of(tmp_path, steps=2), tmp_path / "b")
    resume_run(short, ["steps=6"], lambda *_: SilentProgress())
    last = "step-000006" if (whole / "checkpoints" / "step-000006").exists() else "step-6"
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        one, other = (run / "checkpoints" / last / name for run in (whole, short))
        assert one.read_bytes() == other.read_bytes()
    logged = [[json.loads(line) for line in (run / "metrics.jsonl").open()] for run in (whole, short)]
    assert logged[0][-3:] == logged[1][-3:]


def test_samples_are_kept_and_the_model_loads_elsewhere(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    new = {"family": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 16, "tokenizer": "bpe:300"}
    path = trained(config_of(tmp_path, model={"new": new}), tmp_path)
    run = RunDirectory.open(path, is_writer=False)
    assert run.metrics()[-1]["eval/loss"] < run.metrics()[0]["eval/loss"]
    samples = [json.loads(line) for line in next((path / "evals").glob("step-*6.jsonl")).open()]
    assert len(samples) == 2
    model = transformers.AutoModelForCausalLM.from_pretrained(path / "best_model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path / "best_model")
    ids = tokenizer("the king is", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape[-1] == 300


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": "sorting"}, "learns from a text: set task"),
        ({"model": {"new": {"tokenizer": "bpe:many"}}}, "names no number of tokens"),
        ({"model": {"new": {"context": 4096}}}, "a window of the model's context takes 4097"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        LanguageModelTrainer(config_of(tmp_path, **changes), ALONE, lambda _: None)


def test_data_names_the_text_of_a_recipe(tmp_path: Path) -> None:
    given = config_of(tmp_path, data={"path": "python-stdlib", "limit": 3})
    assert (given.task.options["path"], given.task.options["limit"], given.data) == ("python-stdlib", 3, None)


def test_a_run_is_measured_anew_with_its_best_model(tmp_path: Path) -> None:
    """Digit by digit as it measured itself; fewer bits are better."""
    import whet
    from whet.evaluate.measures import measure_of

    run = whet.Run(trained(config_of(tmp_path, eval={"every_steps": 6, "examples": 2, "max_tokens": 4}), tmp_path))
    logged = RunDirectory.open(run.path, is_writer=False).metrics()[-1]
    again = run.evaluate(examples=2).rows
    assert {key: logged[key] for key in again} == pytest.approx(again, abs=1e-12)
    assert again["eval/bits_per_character"] == pytest.approx(again["eval/loss"] / math.log(2))
    assert not measure_of("eval/bits_per_character").is_higher_better


def test_a_horizon_that_the_context_cuts_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "text.txt", invented(300))
    task, config = (
        CorpusTask(path=str(path)),
        read_recipe("grpo-char", ["rollout.max_tokens=4", "eval.max_tokens=4"]).config,
    )
    tokenizer = character_tokenizer(task.alphabet)
    told = short_horizon_note(config, task, tokenizer, context=32)
    assert "prompts of up to 32 tokens and rollout.max_tokens 4 exceed the context of 32" in told
    assert short_horizon_note(config, task, tokenizer, context=36) == ""
    assert short_horizon_note(config_of(tmp_path), task, tokenizer, context=8) == ""
