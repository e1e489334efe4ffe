"""A loaded model says what the commands say, and a run shows what is in its directory."""

import json
import shlex

import pytest

import whet
from tests.api.tiny import TINY
from tests.small import small_chat_model
from whet.records import Message


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return whet.train("grpo-sorting", steps=2, root=tmp_path_factory.mktemp("runs"), progress=False, **TINY)


def test_completions_are_those_of_the_command(run, command):
    said = json.loads(command("sample", run.path, "513>", "--count", 3, "--seed", 5, "--json").out)
    assert run.sample("513>", n=3, seed=5) == said["prompts"]
    texts = [one["text"] for one in said["prompts"][0]["completions"]]
    assert [one.text for one in whet.generate(run, "513>", n=3, seed=5)] == texts
    assert [one.text for one in whet.load(run).generate(["513>", "21>"], n=3, seed=5)[0]] == texts
    judged = json.loads(command("sample", run.path, "--examples", 2, "--count", 1, "--max-tokens", 3, "--json").out)
    assert run.sample(2, n=1, max_tokens=3) == judged["prompts"]


def test_evaluations_are_those_of_the_command(run, command):
    said = json.loads(command("eval", run.path, "--samples", 2, "--json").out)
    found = run.evaluate(samples=2)
    assert (found.examples, found.seed, list(found.pass_at)) == (said["examples"], said["seed"], [1, 2])
    assert found.accuracy.mean == said["accuracy"]["mean"] == run.results["best"]["value"]
    assert [answer.text for answer in found.answers] == [answer["text"] for answer in said["answers"]]
    said = json.loads(command("eval", run.path, "--task", "sorting", "level=2", "--examples", 3, "--json").out)
    found = whet.evaluate(run, {"name": "sorting", "level": 2}, examples=3)
    assert [answer.text for answer in found.answers] == [answer["text"] for answer in said["answers"]]


def test_a_chat_model_is_asked_as_a_user_unless_the_prompt_is_raw(tmp_path):
    model = whet.load(small_chat_model(tmp_path / "chat"))
    settings = {"temperature": 1, "max_tokens": 8}
    (asked,), (raw,) = model.generate("12+34", **settings), model.generate("12+34", raw=True, **settings)
    ((listed,),) = model.generate([[{"role": "user", "content": "12+34"}]], **settings)
    assert asked == listed
    assert asked.text == raw.text  # its template adds nothing, so what differs is what it is asked
    assert (model.example("hi").prompt, model.example("hi", raw=True).prompt) == (
        (Message(role="user", content="hi"),),
        "hi",
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda run: whet.generate(run, "1>", temprature=1), "no option 'temprature' of sampling"),
        (lambda run: whet.generate(run, "1>", temperature=-1), r"temperature must be 0 \(greedy\) or more, not -1"),
        (lambda run: whet.load(run).evaluate("sortin"), "there is no task 'sortin'; did you mean 'sorting'"),
        (lambda run: whet.evaluate(run.path / "best_model"), "is a model, not a run: say which task"),
        (lambda run: whet.load("http://localhost/v1"), "is a server: say which of its models, --model or served="),
        (lambda run: whet.load("nowhere"), "nowhere"),
        (lambda run: whet.Run(run.path / "nowhere"), "is not a run directory"),
        (lambda run: run.metrics["reward/maen"], "no metric 'reward/maen'; did you mean 'reward/mean'"),
        (lambda run: run.rollouts(7), "has no rollouts of step 7; it has those of steps: 1, 2"),
    ],
)
def test_wrong_questions(run, call, sentence):
    with pytest.raises(whet.UserError, match=sentence):
        call(run)


def test_a_run_shows_what_was_written(run):
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics == lines
    assert json.loads(json.dumps(run.metrics)) == lines
    assert run.metrics["reward/mean"] == [None, lines[1]["reward/mean"], lines[2]["reward/mean"]]
    assert run.metrics[1:] == lines[1:]
    assert run.config["rollout"]["prompts"] == TINY["rollout"]["prompts"]
    assert run.results["steps"] == 2
    assert {row["version"] for row in run.rollouts()} == {1}  # the newest step
    assert repr(run).startswith(f"Run({str(run.path)!r}, 2 of 2 steps, held-out accuracy")
    (run.path / "training_curves.png").write_bytes(b"\x89PNG")
    assert 'src="data:image/png;base64,iVBORw=="' in run._repr_html_()
    assert whet.load(whet.load(run)).policy.context == 16


def test_a_comparison_is_that_of_the_command(tmp_path, command):
    keys = {**TINY, "steps": 1, "cold_start": {"steps": 1}}
    found = whet.compare("toy-sorting", algorithms=["rloo", "grpo"], seeds=[3], root=tmp_path, **keys)
    assert json.loads((found.path / "comparison.json").read_text()) == found.results
    assert found.runs["rloo", 3].config["algorithm"]["preset"] == "rloo"
    assert found.runs["grpo", 3].config["seed"] == 3
    assert found.results["verdict"] in repr(found)
    assert found.page.read_text() == found._repr_markdown_()
    words = command(*shlex.split(found.results["command"])[1:])
    assert words.code == 0
    assert "already finished" in words.err  # the same runs: nothing is made again
    with pytest.raises(whet.UserError, match="by file, not as objects: put Local in a module"):
        whet.compare("toy-sorting", algorithms=["grpo"], task=type("Local", (), {}))
