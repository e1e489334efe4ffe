"""The study of the doctor: cases that the library accepts, histories, verdicts, the search, rivals."""

import gzip
import json
import lzma
import math
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest

from studies.doctor import fit, histories, rivals
from studies.doctor.cases import Fault
from studies.doctor.engines import ENGINES, sampling_with
from studies.doctor.inputs import make_files
from studies.doctor.judge import PARTS, Repair, lasting, looks, repair_summary, repairs, share, summary, verdict
from studies.doctor.run import Pool
from studies.doctor.training import BASES, CASES, FAULTS, HEALTHY, Job, advice, jobs
from whet.algorithms.preference.preference_table import PREFERENCES
from whet.algorithms.table import ALGORITHMS
from whet.doctor import thresholds
from whet.doctor.causes import CAUSES
from whet.doctor.examine import over_time
from whet.doctor.findings import Finding
from whet.doctor.plain_words import written
from whet.doctor.settings import Settings
from whet.recipe import plain, read_recipe
from whet.records import Sampling

STEPS = 40


def test_the_cases_are_as_many_as_the_study_claims():
    assert len(FAULTS) >= 24
    assert len(HEALTHY) >= 50
    assert len(CASES) == len(FAULTS) + len(HEALTHY)  # no name stands for two
    least = {"fit": (24, 15), "develop": (24, 15), "measure": (12, 10)}
    for part in PARTS:
        faults, healthy = least[part]
        assert sum(case.part == part for case in FAULTS) >= faults
        assert sum(case.part == part for case in HEALTHY) >= healthy
    trained = {key.partition("=")[2] for case in HEALTHY for key in case.keys if key.startswith(("algorithm=", "obj"))}
    assert {*ALGORITHMS, *PREFERENCES} - {"apo_down"} <= trained


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("made")
    make_files(place)
    return place


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_recipe_that_the_library_accepts(name, made):
    case = CASES[name]
    for model in ("start", "sorting-start", "spelled-start", "marked", "endless"):
        (made / model).mkdir(exist_ok=True)
    read_recipe(case.recipe, case.arguments(3, made))
    assert all("made/" not in key or str(made) in key for key in case.arguments(3, made))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_differs_from_a_healthy_base_and_has_a_known_cause(fault, made):
    base = CASES[fault.base]
    assert base in BASES
    assert set(fault.causes) <= set(CAUSES)
    assert (fault.keys, fault.engine) != (base.keys, base.engine)
    if fault.is_repairable:
        repaired = replace(fault, keys=(*fault.keys, *fault.repair))
        assert read_recipe(fault.recipe, repaired.arguments(0, made))
    assert fault.engine == "" or fault.engine in ENGINES


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.is_repairable], ids=lambda fault: fault.name)
def test_the_advice_on_every_planted_cause_is_a_recipe_that_the_library_accepts(fault, made):
    keys = fault.arguments(0, made)
    settings = Settings(config=plain(read_recipe(fault.recipe, keys).config), kind=KINDS.get(fault.recipe, "online"))
    for name in fault.causes:
        changes = [written(change).replace("'", "") for change in CAUSES[name].changes(settings)]
        assert changes or fault.repair[0].startswith("model=") or fault.name in NO_ADVICE
        assert read_recipe(fault.recipe, [*keys, *changes])


# What the doctor has no key for: of a reward that is not the user's own, it says what to read.
NO_ADVICE = ("length-penalty-mixed-dapo", "negated-reward-blend-gspo")
KINDS = {"sft-reverse": "sft", "demo-sft": "sft", "dpo": "preference", "reward-model": "reward"}


def metrics(step, **values):
    return {"step": step, "reward/mean": 0.5, "reward/std": 0.2, "entropy": 1.0, "grad_norm": 1.0, **values}


def entry(case, *, seed=0, changes=(), rows=None, accuracy=0.5, ended="", facts=()):
    """A kept run whose reward is constant: its doctor says so."""
    held_out = {}
    if accuracy is not None:
        held_out = {
            "eval/accuracy": accuracy,
            "eval/accuracy_low": accuracy - 0.1,
            "eval/accuracy_high": accuracy + 0.1,
        }
    rows = rows or [metrics(step, **{"reward/std": 0.0}) for step in range(1, STEPS + 1)]
    rows = [{"step": 0, **held_out}, *rows[:-1], {**rows[-1], **held_out}]
    kept = {"config": {"steps": STEPS}, "parameters": 1000, "steps": STEPS, "rollouts": {}, "answers": {}}
    about = {"case": case, "seed": seed, "changes": list(changes), "ended": ended, "seconds": 1.0}
    return {**about, **kept, "facts": list(facts), "rows": rows}


CONSTANT = "constant-reward-sorting-grpo"


def test_a_file_of_histories_survives_its_writers_end(tmp_path):
    file = tmp_path / "histories.jsonl.gz"
    lines = [histories.line(entry(CONSTANT, seed=seed)) for seed in range(3)]
    file.write_bytes(b"".join(lines)[:-200])
    assert [one.seed for one in histories.read([file])] == [0, 1]
    assert histories.read([tmp_path / "none.gz"]) == []
    packed = tmp_path / "histories.jsonl.xz"
    packed.write_bytes(lzma.compress(b"".join(map(gzip.decompress, lines))))
    assert [one.seed for one in histories.read([packed])] == [0, 1, 2]


def test_what_is_kept_of_a_run_is_what_the_doctor_reads(tmp_path):
    """A real run: the diagnosis of the kept history is that of the directory."""
    from studies.doctor.training import train
    from whet.doctor.examine import examine_run
    from whet.runs.directory import RunDirectory

    case = CASES[CONSTANT]
    short = ("steps=12", "cold_start.steps=1", "eval.examples=20", "rollout.prompts=4", "rollout.group=4")
    out = tmp_path / "run"
    found = train(Job(case=replace(case, keys=(*case.keys, *short)), seed=0), tmp_path, out)
    file = tmp_path / "histories.jsonl.gz"
    file.write_bytes(histories.line(found))
    (one,) = histories.read([file])
    told, kept = examine_run(RunDirectory.open(out, is_writer=False)), over_time(one.history, one.facts)
    assert [(finding.rule, finding.level, finding.step) for finding in kept.findings] == [
        (finding.rule, finding.level, finding.step) for finding in told.findings
    ]
    assert [cause.name for cause in kept.causes] == [cause.name for cause in told.causes]
    assert "constant-reward" in [cause.name for cause in kept.causes][:2]


def test_a_verdict_is_the_diagnosis_with_the_step_of_the_first_warning():
    one = histories.trained(entry(CONSTANT))
    diagnosis, said = over_time(one.history), verdict(one)
    assert said.causes == tuple(cause.name for cause in diagnosis.causes)
    assert set(said.alarms) == {finding.rule for finding in diagnosis.alarms}
    assert said.faulty
    assert said.rank == said.causes.index("constant-reward") + 1
    assert said.told is not None
    assert said.share == said.told / STEPS
    first = next(step for step, found in looks(one.history) if any(finding.is_alarm for finding in found))
    assert said.told > first  # an alarm is told once it has lasted


def test_an_alarm_that_has_passed_still_counts():
    def alarm(rule):
        return Finding(rule=rule, level="warning", sentence="", causes=("wrong-sign",))

    seen = [(1, [alarm("a")]), (2, [alarm("a")]), (3, []), (4, [alarm("b")])]
    findings, told = lasting(seen)
    assert told == 2
    assert [(one.rule, one.until) for one in findings] == [("b", None), ("a", 2)]
    assert lasting([(1, [])]) == ([], None)


def test_shares_have_wilson_intervals():
    found = share([True] * 9 + [False])
    assert found["value"] == 0.9
    z = 1.959964
    middle, half = (0.9 + z * z / 20) / (1 + z * z / 10), z * math.sqrt(0.09 / 10 + z * z / 400) / (1 + z * z / 10)
    assert (found["low"], found["high"]) == pytest.approx((middle - half, middle + half), abs=1e-5)
    assert share([]) is None


def test_the_numbers_of_a_part_are_counted_by_runs():
    one = verdict(histories.trained(entry(CONSTANT)))
    runs = [
        one,
        replace(one, seed=1, rank=2, share=0.5),
        replace(one, seed=2, rank=3, alarms=(), told=None, share=None),
    ]
    well = replace(one, case="sorting-grpo", faulty=False, rank=None, alarms=(), told=None, share=None)
    found = summary([replace(runs[0], rank=1, share=0.1), *runs[1:], well, replace(well, seed=1, alarms=("kl",))])
    counts = {key: found[key]["count"] for key in ("detected", "first", "first two", "warned")}
    assert counts == {"detected": 2, "first": 1, "first two": 2, "warned": 1}
    assert (found["faults"], found["faulty runs"], found["healthy runs"]) == (1, 3, 2)
    assert found["median share"] == pytest.approx(0.3)


def test_a_repair_is_the_advised_run_beside_the_healthy_one():
    changes = ("reward.functions=[]",)
    runs = [
        histories.trained(entry(CONSTANT, accuracy=0.2)),
        histories.trained(entry(CONSTANT, accuracy=0.76, changes=changes)),
        histories.trained(entry("sorting-grpo", accuracy=0.8)),
    ]
    (found,) = repairs(runs, {(CONSTANT, 0): changes})
    assert found.lost == pytest.approx(0.25)
    assert found.restored == pytest.approx(0.95)
    (untried,) = repairs(runs, {(CONSTANT, 0): ("optimizer.lr=1",)})
    assert untried.restored is None
    (silent,) = repairs(runs, {(CONSTANT, 0): ()})
    assert silent.restored == 0.0
    unhurt = replace(found, lost=0.97)
    assert repair_summary([found, untried, silent, unhurt]) == {"hurt": 3, "tried": 2, "restored": share([True, False])}
    assert isinstance(found, Repair)


def test_the_first_seeds_of_faults_come_first_and_none_twice(tmp_path):
    every = list(jobs())
    assert len({job.key for job in every}) == len(every)
    seeds = Counter(job.case.name for job in every)
    assert {seeds[case.name] for case in (*BASES, *FAULTS)} == {5}
    pool = Pool(parallel=1, runs=tmp_path, made=tmp_path, to=tmp_path / "to", until=0.0)
    for job in [*every, every[0]]:
        pool.add(job)
    order = [job for _, _, job in sorted(pool.waiting)]
    assert len(order) == len(every)
    first = order[: len(FAULTS) + len(BASES)]
    assert {job.seed for job in first} == {0}
    advised = Job(case=FAULTS[0], seed=0, changes=("optimizer.lr=1e-3",))
    assert max(job.place for job in first) < advised.place < Job(case=FAULTS[0], seed=2).place


def test_advice_is_what_a_shell_would_give_to_whet():
    one = histories.trained(entry(CONSTANT))
    for text in advice(one):
        key, _, value = text.partition("=")
        assert key
        assert "'" not in value


def test_engines_take_the_place_of_the_native_one_and_leave_it_again():
    from whet.engines.native.native_engine import NativeEngine
    from whet.train.setup import build

    with sampling_with("unsynced"):
        assert build.NativeEngine is ENGINES["unsynced"]
    assert build.NativeEngine is NativeEngine
    with sampling_with(""):
        assert build.NativeEngine is NativeEngine


def test_an_unsynced_engine_keeps_the_first_weights_and_an_apart_one_the_last():
    import torch

    from tests.small import small_model

    def weights(name, syncs):
        policy, tokenizer = small_model(seed=0)
        engine = ENGINES[name](policy, tokenizer)
        for number in range(syncs):
            with torch.no_grad():
                next(policy.parameters()).fill_(number)
            engine.sync(policy, version=number)
        return next(engine.policy.parameters()).flatten()[0].item()

    assert weights("unsynced", 5) == 0
    assert weights("apart", 5) == 4
    assert weights("seldom-synced", 13) == 11
    assert not ENGINES["apart"].is_exact


def test_engines_that_cut_and_round_sample_other_distributions():
    import torch

    from tests.small import small_model

    policy, tokenizer = small_model(seed=0)
    engine = ENGINES["rounded"](policy, tokenizer)
    engine.sync(policy, version=1)
    for rounded, weight in zip(engine.policy.parameters(), policy.parameters(), strict=True):
        step = weight.abs().max() / 4
        assert (rounded - weight).abs().max() <= step / 2 + 1e-6
        assert torch.unique((rounded / step.clamp(min=1e-12)).round()).numel() <= 9
    seen = []
    with patch.object(ENGINES["apart"], "generate", lambda _, prompts, sampling, **__: seen.append(sampling)):
        ENGINES["cut"](policy, tokenizer).generate([], Sampling(max_tokens=3))
    assert [one.top_p for one in seen] == [0.5]


def test_shifted_words_are_right_and_few_of_them_come_again():
    from studies.doctor.own.tasks import FewShifted, Shifted

    task = Shifted(level=4, letters=16)
    for one in [*task.draw(50, seed=(1,)), *task.held_out(20)]:
        word = one.columns["question"]
        assert one.answer == "".join("bcdefghijklmnopa"["abcdefghijklmnop".index(letter)] for letter in word)
        assert task.correct(one, one.answer)
        assert not task.correct(one, word)
    few = FewShifted(level=4, letters=16, prompts=3)
    assert len({one.prompt for seed in range(5) for one in few.draw(8, seed=(seed,))}) == 3


def test_labels_are_exchanged_in_training_alone(made):
    def read(name):
        return [json.loads(line) for line in (made / f"spelled-{name}.jsonl").read_text().splitlines()]

    for name, is_right in (("mislabelled", False), ("labelled-clean", True)):
        for row in read(name):
            assert (row["completion"] == row["prompt"][:-1][::-1]) == (row["label"] == is_right)


def test_pairs_have_what_their_names_say(made):
    def read(name):
        return [json.loads(line) for line in (made / name).read_text().splitlines()]

    pairs, swapped, noisy, longer = (read(f"{name}.jsonl") for name in ("pairs", "swapped", "noisy", "longer"))
    assert all(row["chosen"] == row["prompt"][:-1][::-1] != row["rejected"] for row in pairs)
    assert all(row["rejected"] == row["prompt"][:-1][::-1] for row in swapped)
    kept = sum(a == b for a, b in zip(pairs, noisy, strict=True)) / len(pairs)
    assert 0.45 < kept < 0.55
    assert all(len(row["chosen"]) > len(row["rejected"]) for row in longer)
    assert {json.dumps(row) for row in read("clean.jsonl")}.isdisjoint(json.dumps(row) for row in pairs[:1500])


def rising(case, *, at, seed=0):
    """A run whose KL rises to a value in its second half."""
    rows = [
        metrics(step, kl=0.0 if step < STEPS / 2 else at, **{"reward/mean": 0.5 + 0.01 * step})
        for step in range(1, STEPS + 1)
    ]
    return histories.trained(entry(case, rows=rows, seed=seed, accuracy=None))


def test_the_search_moves_a_threshold_until_faults_are_apart_from_healthy_runs():
    before = thresholds.KL
    runs = [
        rising("wrong-reference-sorting-grpo", at=1.4),
        rising("wrong-reference-sorting-grpo", at=1.5, seed=1),
        rising("sorting-grpo", at=0.7),
    ]
    try:
        moved = fit.search(runs, say=lambda _: None)
        assert 0.7 < moved["KL"][1] <= 1.4
        assert [verdict(one).is_warned for one in runs] == [True, True, False]
    finally:
        for name in moved:
            setattr(thresholds, name, before if name == "KL" else getattr(thresholds, name))


def test_the_search_knows_which_rules_read_a_threshold():
    finder = fit.Search([rising("sorting-grpo", at=0.7)])
    assert len(finder.readers["KL"]) >= 1
    assert finder.score() == finder.score("KL", thresholds.KL)


def test_new_values_are_written_where_the_old_ones_stood():
    text = "# Shares\nKL = (0.5, 2.0)  # nats\nKL_AT_START = 0.02  # first\nFALL = 0.1\n"
    moved = {"KL": (0.7, 1.4), "FALL": 0.05}
    assert fit.written(text, moved) == "# Shares\nKL = (0.7, 1.4)  # nats\nKL_AT_START = 0.02  # first\nFALL = 0.05\n"


def test_rivals_are_given_names_that_they_know_and_their_causes_are_ours():
    for causes in rivals.CAUSES.values():
        assert {name for some in causes.values() for name in some} <= set(CAUSES)
    one = histories.trained(
        entry("sorting-grpo", rows=[metrics(1, kl=None, approx_kl=0.3, loss=None), metrics(2, kl=0.1)])
    )
    rows = rivals.trl_rows(one)
    assert rows[1] == {"step": 1, "reward": 0.5, "reward_std": 0.2, "entropy": 1.0, "grad_norm": 1.0, "kl": 0.3}
    assert rows[2]["kl"] == 0.1
    assert rows[0]["eval_score"] == 0.5


def test_a_rivals_finding_names_a_cause_if_its_advice_speaks_of_it():
    one = histories.trained(entry(CONSTANT))
    causes = {"first": ("wrong-sign",), "second": ("noisy-reward", "constant-reward")}
    said = rivals.verdict(one, [("first", 9), ("second", 20)], causes)
    assert (said.rank, said.told, said.share, said.alarms) == (2, 9, 9 / STEPS, ("first", "second"))
    assert rivals.verdict(one, [], causes).rank is None


def test_histories_are_compressed_one_by_one():
    line = histories.line(entry(CONSTANT))
    assert json.loads(gzip.decompress(line))["case"] == CONSTANT


def test_cases_are_faults_or_healthy():
    assert all(isinstance(CASES[fault.name], Fault) for fault in FAULTS)
