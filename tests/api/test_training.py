"""`whet.train` with objects: what is written, what is refused, and what is left behind when something fails."""

import json
import os
import pydoc
import signal
import sys
from dataclasses import dataclass

import pytest

import whet
from tests.api.tiny import TINY, whose
from tests.small import small_model
from whet.records import Example, Score


def train(tmp_path, *args, **keys):
    settings = {"root": tmp_path / "runs", "progress": False, **TINY, **keys}
    return whet.train(*(args or ("grpo-sorting",)), **settings)


def even(completions):
    return [float(len(text) % 2 == 0) for text in completions]


def test_a_function_of_a_module_runs_in_the_worker_and_one_of_a_closure_here(tmp_path):
    here = lambda completions: [float(os.getpid())] * len(completions)  # noqa: E731
    for function, use, is_here in (
        (whose, "tests.api.tiny:whose", False),
        (here, "<python>:lambda", True),
    ):
        run = train(tmp_path, steps=1, rewards=[function])
        assert run.config["reward"]["functions"][0]["use"] == use
        assert (run.metrics["reward/mean"][1] == os.getpid()) is is_here


def test_the_command_refuses_to_go_on_without_the_objects(tmp_path, command):
    stopped = train(tmp_path, steps=3, rewards=[lambda completions: even(completions)], on_step=lambda *_: False)
    done = command("train", stopped.path, "--resume")
    assert done.code == 2
    assert "reward function '<python>:lambda' is a Python object" in done.err
    assert "whet.train(resume=RUN, rewards=[lambda])" in done.err
    with pytest.raises(whet.UserError, match=r"rewards=\[lambda\]"):
        whet.train(resume=stopped)


def test_a_resumed_run_keeps_its_config_and_its_code(tmp_path):
    def reward(completions):
        return even(completions)

    stopped = train(tmp_path, steps=3, rewards=[reward], on_step=lambda *_: False)
    with pytest.raises(whet.UserError, match="seed: a resumed run keeps its config"):
        whet.train(resume=stopped, rewards=[reward], seed=4)
    with pytest.raises(whet.UserError, match="keeps its config"):
        whet.train(resume=stopped, rewards=[(reward, 2.0)])

    def changed(completions):
        return [1.0 for _ in completions]

    changed.__name__ = "reward"
    with pytest.raises(whet.UserError, match=r"reward.functions.0 <python>:reward changed .*accept_changes=True"):
        whet.train(resume=stopped, rewards=[changed])
    run = whet.train(resume=stopped, rewards=[changed], accept_changes=True, steps=4, progress=False)
    assert run.metrics["reward/mean"][2:] == [1.0, 1.0, 1.0]
    reward_changed, extended = run.results["accepted_changes"]
    assert "reward.functions.0" in reward_changed
    assert extended == "steps 4 instead of 3 (after step 1)"


def test_stopping(tmp_path):
    def stops(step, metrics):
        assert {"loss", "reward/mean", "lr"} <= metrics.keys()
        raise StopIteration

    def interrupts(step, metrics):
        raise KeyboardInterrupt

    assert [row["step"] for row in train(tmp_path, steps=3, on_step=stops).metrics] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, steps=3, on_step=interrupts, directory=tmp_path / "exact")
    run = whet.train(resume=tmp_path / "exact", progress=False)  # it was saved
    assert (run.finished, len(run.metrics)) == (True, 4)
    with pytest.raises(KeyboardInterrupt):  # as Ctrl-C
        train(tmp_path, steps=3, on_step=lambda *_: os.kill(os.getpid(), signal.SIGINT), directory=tmp_path / "killed")
    assert [row["step"] for row in whet.Run(tmp_path / "killed").metrics] == [0, 1]


def test_a_reward_that_raises_here_leaves_its_example(tmp_path):
    def picky(completions):
        if any(text.startswith("1") for text in completions):
            raise ValueError("no ones")
        return [0.0] * len(completions)

    with pytest.raises(
        whet.RunFailed,
        match=r"function picky failed at \S+:\d+ in picky: ValueError: no ones \(example .*; see (\S+)",
    ):
        train(tmp_path, steps=40, rewards=[picky])
    (evidence,) = tmp_path.glob("runs/*/failures/reward-001.json")
    assert json.loads(evidence.read_text())["text"].startswith("1")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda completions: [float("nan")] * len(completions), "gave nan for row 0"),
        (lambda completions: [0.0], "gave 1 rewards for 8 completions"),
        (lambda completions: [None] * len(completions), "has no reward: at least one must give a number"),
        (lambda completions: sys.exit(3), r"called sys.exit\(3\)"),
        (lambda tokens: [0.0], "requires 'tokens', which is not a column"),
        (lambda environments: [0.0], "requires 'environments', which whet does not offer"),
    ],
)
def test_what_is_no_reward_is_refused_here_as_in_the_worker(tmp_path, answer, sentence):
    with pytest.raises((whet.RunFailed, whet.UserError), match=sentence):
        train(tmp_path, steps=1, rewards=[answer])


class Echo:
    """A task that is no dataclass: what a notebook would define."""

    name = "echo"
    alphabet = "0123456789>"

    def __init__(self, factor=1):
        self.factor = factor

    def draw(self, count, *, seed):
        return [self._example((seed[-1] * 31 + number * 7) % 90) for number in range(count)]

    def held_out(self, count):
        return [self._example(number) for number in range(90, 90 + min(count, 10))]

    def score(self, example, text):
        return Score(reward=self.factor * float(text == example.answer) - 0.01 * len(text), parts={})

    def correct(self, example, text):
        return text == example.answer

    def _example(self, number):
        return Example(id=str(number), prompt=f"{number}>", answer=str(number))


def test_a_task_object(tmp_path):
    task = Echo(factor=2)
    run = train(tmp_path, steps=2, task=task, on_step=lambda step, _: step < 1)
    assert run.config["task"] == {"name": "<python>:Echo"}
    run = whet.train(resume=run, task=task, progress=False)
    assert run.finished
    assert run.evaluate(examples=5).examples == 5  # the run remembers the object
    assert run.sample(1)[0]["answer"].startswith("9")
    assert whet.evaluate(run, Echo(), examples=4, max_tokens=3).examples == 4
    with pytest.raises(whet.UserError, match=r"task '<python>:Echo' .* whet.train\(resume=RUN, task=Echo\)"):
        whet.Run(run.path).evaluate()
    with pytest.raises(whet.UserError, match="has its options already: leave out level"):
        train(tmp_path, steps=1, task={"name": task, "level": 2})

    class Broken(Echo):
        def score(self, example, text):
            return 1.0

    with pytest.raises(whet.RunFailed, match="the score of task echo raised TypeError: it gave a float, not a Score"):
        train(tmp_path, steps=1, task=Broken())


def test_rows_that_are_given_lie_in_the_run(tmp_path):
    model, tokenizer = small_model()
    for part in (model, tokenizer):
        (tmp_path / "model").mkdir(exist_ok=True)
        part.save(tmp_path / "model")
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(40)]
    recipe = {"loop": "offline", "steps": 2, "batch_size": 4, "eval": {"examples": 4, "max_tokens": 4}, "device": "cpu"}
    keys = {"model": tmp_path / "model", "root": tmp_path / "runs", "name": "sums", "progress": False}
    stopped = whet.train(recipe, data=rows, on_step=lambda *_: False, **keys)
    written = stopped.path / "data.jsonl"
    assert [json.loads(line) for line in written.read_text().splitlines()] == rows
    assert stopped.config["data"]["path"] == stopped.config["task"]["path"] == str(written)
    whole = whet.train(recipe, data=rows, **keys)
    written.write_text(written.read_text() + json.dumps(rows[0]) + "\n")
    with pytest.raises(whet.UserError, match=r"data.path .*data.jsonl changed since the run began"):
        whet.train(resume=stopped)
    written.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = whet.train(resume=stopped, progress=False)  # the file is all that it needs
    assert list(done.metrics) == list(whole.metrics)
    assert stopped.path.name.endswith("-sums")
    with pytest.raises(whet.UserError, match="leave data out"):
        whet.train(resume=stopped, data=rows)


def test_prompts_and_answers_are_the_task_of_a_recipe_with_rollouts(tmp_path):
    model = train(tmp_path, steps=1)
    rows = [{"prompt": f"{n}0>", "answer": f"0{n}", "weight": n} for n in range(1, 10)]
    seen = []

    def weighted(completions, weight):
        seen.extend(weight)
        return [float(one) for one in weight]

    run = train(tmp_path, steps=1, data=rows, rewards=[weighted], model=model)
    assert run.config["task"] == {"name": "rows", "path": str(run.path.absolute() / "task.jsonl")}
    assert set(seen) <= set(range(1, 10))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"data": [{"prompt": "1", "answer": "2"}], "stepz": 1}, "unknown key 'stepz'"),
        ({"data": [{"prompt": "1"}, {"prompt": "2"}]}, "does not list its characters"),
        ({"data": [{"prompt": "1"}, {"prompt": "2"}], "task": {"held_out_share": 2}}, "held_out_share is 2"),
        ({"rewards": [lambda: 1], "steps": 0}, "steps"),
        ({"recipe": None}, "nothing to train: name a recipe"),
        ({"accept_changes": True}, "accept_changes is for a resumed run"),
        ({"recipe": 3}, "a recipe is a packaged name, a YAML file or a dict, not a int"),
        ({"on_step": 3}, "on_step is a int, not a function of step and metrics"),
        ({"task": Example(id="1", prompt="1>", answer="1")}, "a task needs name, draw, held_out, score and correct"),
        ({"resume": "runs/x"}, "which has its own recipe: leave 'grpo-sorting' out"),
        ({"recipe": "rlhf-reviews", **dict.fromkeys(TINY)}, "rlhf-reviews"),
    ],
)
def test_wrong_calls_leave_nothing_behind(tmp_path, keys, sentence):
    recipe = keys.pop("recipe", "grpo-sorting")
    with pytest.raises(whet.UserError, match=sentence):
        train(tmp_path, recipe, **keys)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@dataclass(frozen=True)
class NamedEcho:
    """A task whose name is a field."""

    name: str = "named-echo"
    alphabet: str = "0123456789>"

    draw, held_out, _example = Echo.draw, Echo.held_out, Echo._example
    score, correct = Echo.score, Echo.correct
    factor: float = 1.0


def test_a_task_with_its_name_as_a_field_is_found_by_its_class(tmp_path):
    run = train(tmp_path, steps=1, task=NamedEcho(factor=2.0), rewards=even)  # a reward need not be in a list
    assert run.config["task"] == {"name": f"{__name__}:NamedEcho", "alphabet": "0123456789>", "factor": 2.0}
    with pytest.raises(whet.UserError, match="n must be at least 1, not 0"):
        run.load().generate("1>", n=0)
    with pytest.raises(whet.UserError, match="prompts must be a text, or a list of texts and conversations"):
        whet.generate(run, [{"role": "user", "content": "1"}])


def test_a_comparison_reads_its_recipe_by_name(tmp_path):
    with pytest.raises(whet.UserError, match="reads its recipe by name"):
        whet.compare({"steps": 1}, algorithms=["grpo"], root=tmp_path)


def test_the_callable_packages_have_the_help_of_their_functions():
    assert "Trains a recipe and returns its `Run`." in pydoc.plain(pydoc.render_doc(whet.train))
    assert "Held-out accuracy (greedy)" in str(whet.evaluate.__doc__)


def test_a_pipeline_is_sent_to_its_own_function(tmp_path):
    with pytest.raises(whet.UserError, match=r"several runs: use whet\.pipeline"):
        whet.train("rlhf-reviews", root=tmp_path)
    with pytest.raises(whet.UserError, match=r"is a recipe of one run: use whet\.train"):
        whet.pipeline("grpo-sorting", root=tmp_path)
    with pytest.raises(whet.UserError, match="a pipeline finds functions and tasks by file"):
        whet.pipeline("rlhf-reviews", shared={"task": Echo()}, root=tmp_path)


def test_processes_of_torchrun_train_once(tmp_path, monkeypatch):
    train(tmp_path, steps=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(whet.UserError, match="a process can train once"):
        train(tmp_path, steps=1)
    with pytest.raises(whet.UserError, match="data as a list is for one run in one process"):
        train(tmp_path, steps=1, data=[{"prompt": "1"}, {"prompt": "2"}])


def test_a_pipeline(tmp_path, capsys):
    tiny = {"model": {"new": {"layers": 1, "width": 32, "context": 16}}, "task": "sorting", "steps": 1}
    small = {"eval": {"examples": 4, "max_tokens": 6}, "device": "cpu", "track": []}
    recipe = {
        "loop": "pipeline",
        "shared": {"task": "sorting", **small},
        "stages": {"sft": {"loop": "offline", "batch_size": 4, **tiny}},
        "methods": {
            "grpo": {"steps": 5, "model": "@sft", "algorithm": "grpo", "rollout": {"prompts": 2, "max_tokens": 6}}
        },
    }
    made = whet.pipeline(recipe, methods={"grpo": {"steps": 1}}, name="two", root=tmp_path)
    assert list(made.runs) == ["stages/sft", "methods/grpo/seed-0"]
    assert made.runs["stages/sft"].finished
    assert [row["step"] for row in made.runs["methods/grpo/seed-0"].metrics] == [0, 1]
    assert made.results is None  # no comparison was asked for
    assert made.path.name.endswith("-two")
    assert whet.pipeline(resume=made.path) == made
