"""The directory of a finished pipeline, made with the real `Run` and the real numbers of a contest, in no time."""

from pathlib import Path

from tests.report.fake_contest import METHODS, fake_contest
from whet.evaluate.reward_reports import pair_report
from whet.runs.directory import RunDirectory

SECRET = "a sentence of the data"
MACHINE = {"platform": "a host", "python": "3.11", "threads": 2, "device": "x86_64", "processes": 1}
VERSIONS = {"torch": "2.13.0"}
NAMES = ("ppo", "dpo")


def write_run(path: Path, *, seed: int = 0, accuracy: float = 0.75, finished: bool = True, **more) -> Path:
    """A run of four steps that take half a second each; the evaluation at the end takes as long."""
    ends = {"before": evaluation(0.5), "after": evaluation(accuracy)}
    with RunDirectory.create(path.parent, "fake", "loop: offline\nsteps: 4\n", path=path) as run:
        run.log(0, ends["before"])
        for step in range(1, 5):
            run.log(step, {"loss": 1.0, **(ends["after"] if step == 4 else {})})
            run.log_times(step, {"seconds/step": 0.5, **({"seconds/eval": 0.5} if step == 4 else {})})
        if finished:
            about = {"machine": MACHINE, "versions": VERSIONS, "best": {"step": 4, "accuracy": accuracy}, **more}
            run.finish({"recipe": "fake", "loop": "offline", "steps": 4, "seed": seed, **ends, **about})
    return path


def evaluation(share: float) -> dict[str, float]:
    return {
        "eval/accuracy": share,
        "eval/accuracy_low": share - 0.125,
        "eval/accuracy_high": share + 0.125,
        "eval/longer": 0.5625,
    }


def write_reward_model(path: Path, *, seed: int = 0, accuracy: float = 0.75) -> Path:
    """A preference model with its analysis, whose worst mistakes are there in full."""
    write_run(path, seed=seed, accuracy=accuracy)
    report = pair_report([1.0, 2.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.5], lengths=[(4, 2), (3, 5), (7, 1), (2, 2)])
    values = {name: getattr(report, name) for name in report.__dataclass_fields__}
    plain = {**{key: plain_value(value) for key, value in values.items()}, "worst_rows": [{"chosen": SECRET}]}
    with RunDirectory.open(path) as run:
        run.write_analysis(plain, b"picture of a reward model")
    return path


def plain_value(value):
    """Records as JSON has them."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain_value(getattr(value, name)) for name in value.__dataclass_fields__}
    return [plain_value(one) for one in value] if isinstance(value, tuple) else value


def write_pipeline(path: Path, *, seed: int = 0, failed=()) -> Path:
    """SFT, reward model, judge and two methods, judged."""
    write_run(path / "stages" / "sft", seed=seed)
    with RunDirectory.create(path, "pairs", "loop: collect\nsteps: 1\n", path=path / "stages" / "pairs") as run:
        run.log(1, {"reward/mean": 0.0})
        run.log_times(1, {"seconds/step": 8.0})
        run.write_rows([{"prompt": SECRET, "chosen": SECRET, "rejected": "b"}])
        run.finish({"recipe": "pairs", "loop": "collect", "rows": 1, "select": "pairs", "seed": seed})
    for name, share in (("reward", 0.75), ("judge", 0.625)):
        write_reward_model(path / "stages" / name, seed=seed, accuracy=share)
    (path / "config.yaml").write_text("loop: pipeline\nstages: {sft: {}, pairs: {}, reward: {}, judge: {}}\n", "utf-8")
    for name in NAMES:
        write_run(path / "methods" / name / f"seed-{seed}", seed=seed, finished=(name, seed) not in failed)
    methods = {name: METHODS[name] for name in NAMES}
    directory = fake_contest(path / "comparison", methods=methods, seeds=1, prompts=30, pairwise=False)
    results = {**directory.results(), "title": "fake", "seed": seed}
    here = str(path.absolute())
    results |= {"proxy_path": f"{here}/stages/reward", "judge_path": f"{here}/stages/judge"}
    results["settings"] |= {"start": f"{here}/stages/sft", "reward": f"{here}/stages/reward"}
    for method in results["methods"]:
        for one in method["seeds"]:
            one["seed"] = seed
            if (method["method"], seed) in failed:
                one |= {"failure": "step 2: the loss is not finite", "summary": None, "samples": None}
                method["summary"] = None
    directory.write_results(results)
    (path / "comparison" / "overview.png").write_bytes(b"picture of methods")
    (path / "comparison" / "comparison.md").write_text("the table\n", "utf-8")
    (path / "comparison" / "comparison.html").write_text(SECRET, "utf-8")
    return path
