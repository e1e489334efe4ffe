"""The how-tos of CONTRIBUTING.md, followed to the letter in a copy of the source tree.

All six are followed in one copy and by one process, because starting Python with torch takes seconds. At the end the
tests that read the tables run there: nothing that was added may ask for an edit in one of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
TINY = "steps=1 rollout.prompts=4 eval.examples=4 device=cpu track=[]"
ROWS = "steps=1 batch_size=4 eval.examples=4 data.held_out_share=0.5 device=cpu track=[]"


DRIVER = """
import contextlib, io, json, sys, traceback
from pathlib import Path
import pytest
from whet.cli.app import main

def whet(line):
    sys.argv = ["whet", *line.split()]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, f"{line} ended with {stop.code}"

told = {}
for name, script in json.loads(Path("scripts.json").read_text()).items():
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(script, {"whet": whet, "pytest": pytest, "Path": Path})
            failed = ""
        except BaseException:
            failed = traceback.format_exc()
    told[name] = (failed, said.getvalue())
Path("told.json").write_text(json.dumps(told))
"""


def edit(path, before, after):
    text = path.read_text("utf-8")
    assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times in {path}"
    path.write_text(text.replace(before, after), "utf-8")


def append(path, text):
    path.write_text(path.read_text("utf-8") + text, "utf-8")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each how-to printed, once all of them were followed; and the copy that they were followed in."""
    house = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "src", house / "src")  # with its bytecode, which saves compiling all of it
    shutil.copytree(ROOT / "tests", house / "tests", ignore=shutil.ignore_patterns("mutants", "golden"))
    for name in ("ARCHITECTURE.md", "pyproject.toml"):
        shutil.copy(ROOT / name, house)
    scripts = {name: add(house) for name, add in HOW_TOS.items()}
    (house / "scripts.json").write_text(json.dumps({**scripts, "tests of the tables": TABLES}), "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{house / 'src'}{os.pathsep}{house}", "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", DRIVER], cwd=house, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return json.loads((house / "told.json").read_text("utf-8"))


def test_each_how_to_has_at_most_eleven_lines_and_is_followed():
    sections = re.split(r"^## Add an? ", GUIDE, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == list(HOW_TOS)
    for section in sections:
        assert len(section.strip().splitlines()) - 2 <= 11, section.splitlines()[0]


def add_an_algorithm(house):
    surrogates, table = (house / "src/whet/algorithms" / name for name in ("policy_loss.py", "table.py"))
    append(
        surrogates,
        "\n\ndef tempered(logprobs: Tensor, advantages: Tensor, *, power: float = 2.0) -> Tensor:\n"
        '    """−sign(A)·|A|^power·log π: strong opinions count more. Nobody 2026."""\n'
        "    return -advantages.sign() * advantages.abs() ** power * logprobs\n",
    )
    edit(table, "SURROGATES = _named(", "SURROGATES = _named(p.tempered, ")
    row = '"mine": row(a.center, p.tempered, p.token_mean, "Nobody26"),'
    edit(table, '    "dr_grpo":', f'    {row}\n    "dr_grpo":')
    return f"""
whet("check-loss tempered")
whet("explain grpo-sorting algorithm=mine algorithm.tempered.power=1.5")
whet("train grpo-sorting algorithm=mine algorithm.tempered.power=1.5 {TINY} --runs algorithm")
(metrics,) = Path("algorithm").glob("*/metrics.jsonl")
assert '"step": 1' in metrics.read_text()
"""


LOSS = '''
def softened(
    chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, beta: float = 0.1
) -> Tensor:
    """−log σ(β(w − l)/2), w and l = log π/π_ref of chosen and rejected. Nobody 2026."""
    return -logsigmoid(beta * ((chosen - chosen_ref) - (rejected - rejected_ref)) / 2)
'''
HEADER = "from torch import Tensor\nfrom torch.nn.functional import logsigmoid\n"
ORACLE = """

def softened(case: Number, beta: float = 0.1) -> float:
    margin = case["chosen"] - case["chosen_ref"] - case["rejected"] + case["rejected_ref"]
    return -log(sigmoid(beta * margin / 2))


def squared_gap(case: Number, wanted: float = 1.0) -> float:
    return (case["chosen_scores"] - case["rejected_scores"] - wanted) ** 2


LOSSES |= {"softened": softened, "squared_gap": squared_gap}
OPTIONS |= {"softened": [{"beta": 0.4}], "squared_gap": [{"wanted": 3.0}]}
"""


def add_a_preference_loss(house):
    (house / "losses.py").write_text(HEADER + LOSS, "utf-8")
    preference = house / "src/whet/algorithms/preference"
    append(preference / "losses.py", f"\n{LOSS}")
    line = '    "softened":   pair(p.softened,   p.log_ratio,             "Nobody 2026"),\n'
    edit(preference / "preference_table.py", '    "cdpo":  ', f'{line}    "cdpo":  ')
    append(house / "tests/algorithms/oracle_preference.py", ORACLE)
    pairs = [{"prompt": f"{a}+1=", "chosen": f"{a + 1}", "rejected": f"{a}"} for a in range(40)]
    (house / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), "utf-8")
    recipe = (
        "loop: offline\nmodel: {new: {layers: 1, heads: 2, width: 16, context: 32, family: mistral}}\n"
        "task: arithmetic\ndata: pairs.jsonl\nobjective: {name: softened, beta: 0.3}\n"
    )
    (house / "pairs.yaml").write_text(recipe, "utf-8")
    return f"""
whet("check-loss losses.py:softened")
whet("train pairs.yaml objective=losses.py:softened objective.beta=0.3 {ROWS} --runs own")
whet("check-loss softened")
whet("explain pairs.yaml {ROWS}")
whet("train pairs.yaml {ROWS} --runs shipped")
lines = [next(Path(where).glob("*/metrics.jsonl")).read_text() for where in ("own", "shipped")]
assert '"step": 1' in lines[0]
assert lines[0] == lines[1]
"""


REWARD_LOSS = '''
def squared_gap(chosen_scores: Tensor, rejected_scores: Tensor, *, wanted: float = 1.0) -> Tensor:
    """(w − l − wanted)², w and l = scores. Nobody 2026."""
    return (chosen_scores - rejected_scores - wanted).square()
'''


def add_a_reward_model_loss(house):
    append(house / "losses.py", REWARD_LOSS)
    preference = house / "src/whet/algorithms/preference"
    append(preference / "reward_losses.py", f"\n{REWARD_LOSS}")
    row = 'RewardObjective(loss=reward_losses.squared_gap, kind="preference", paper="Nobody 2026")'
    before = '    "outcome": RewardObjective'
    edit(preference / "preference_table.py", before, f'    "squared_gap": {row},\n{before}')
    return f"""
whet("check-loss losses.py:squared_gap")
whet("check-loss squared_gap wanted=2.0")
whet("explain pairs.yaml objective=losses.py:squared_gap {ROWS}")
whet("train pairs.yaml objective=squared_gap {ROWS} --runs judge")
assert next(Path("judge").glob("*/reward_model.png")).is_file()
"""


TASK = '''
from dataclasses import dataclass
from whet.records import Example, Score

@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Writes a digit twice."""

    most: int = 9

    @property
    def name(self):
        return "doubling"

    @property
    def alphabet(self):
        return "0123456789:"

    def _example(self, n):
        return Example(id=str(n), prompt=f"{n}:", answer=f"{n}{n}")

    def draw(self, count, *, seed):
        start = hash(seed)
        return [self._example((start + i) % (self.most * 9) + 10) for i in range(count)]

    def held_out(self, count):
        return [self._example(n) for n in range(10)][:count]

    def score(self, example, text):
        right = float(text == example.answer)
        return Score(reward=right, parts={"right": right})

    def correct(self, example, text):
        return text == example.answer
'''


def add_a_task(house):
    (house / "my_module.py").write_text(TASK, "utf-8")
    shutil.copy(house / "my_module.py", house / "src/whet/tasks/doubling.py")
    table = house / "src/whet/tasks/loading.py"
    edit(table, '    "reverse": Reverse,\n', '    "reverse": Reverse,\n    "doubling": Doubling,\n')
    edit(table, "from whet.imports", "from whet.tasks.doubling import Doubling\nfrom whet.imports")
    return f"""
whet("train grpo-sorting task.name=my_module:Doubling task.most=8 {TINY} --runs task")
from my_module import Doubling
from whet.tasks.check import check_task
check_task(Doubling())
whet("tasks")
"""


MODEL = """
import torch
from pathlib import Path
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM
from whet.models.load import load_model, model_summary
torch.manual_seed(0)
config = MistralConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=64, sliding_window=None)
theirs = MistralForCausalLM(config).eval()
theirs.save_pretrained("weights")
assert model_summary(Path("weights"))["implementation"] == "decoder"
ours = load_model(Path("weights"))
tokens = torch.randint(0, 50, (2, 9))
with torch.no_grad():
    logits = ours.head(ours.hidden(tokens, torch.tensor([9, 9])))
    assert torch.allclose(logits, theirs(tokens).logits, atol=1e-4)
    Path("back").mkdir()
    ours.save(Path("back"))
    assert torch.allclose(logits, AutoModelForCausalLM.from_pretrained("back")(tokens).logits, atol=1e-4)
"""


def add_a_model_family(house):
    row = '    "mistral": _llama_like("mistral", "MistralForCausalLM"),\n    "qwen2":'
    edit(house / "src/whet/models/decoder/families.py", '    "qwen2":', row)
    edit(house / "tests/models/hf_models.py", '    "olmo2": ', '    "mistral": ("Mistral", TINY),\n    "olmo2": ')
    return f"""{MODEL}
whet("explain grpo-sorting model.new.family=mistral")
"""


ENGINE = '''
from whet.engines.native.native_engine import NativeEngine


class CountingEngine(NativeEngine):
    """Counts what it is asked for."""

    asked = 0

    def generate(self, prompts, sampling, *, count=1):
        type(self).asked += len(prompts) * count
        return super().generate(prompts, sampling, count=count)
'''

CHECK_ENGINE = """
from tests.small import small_model
from whet.engines.check_engine import check_engine
from whet.engines.counting import CountingEngine
model, tokenizer = small_model()
check_engine(CountingEngine(model, tokenizer), model, tokenizer, [tokenizer.encode("12+"), tokenizer.encode("a")])
"""


def add_an_engine(house):
    (house / "src/whet/engines/counting.py").write_text(ENGINE, "utf-8")
    edit(house / "src/whet/config/parts.py", 'Literal["native", "vllm"]', 'Literal["native", "vllm", "counting"]')
    parts = house / "src/whet/train/setup/build.py"
    branch = '    if config.name == "counting":\n        return CountingEngine(policy, tokenizer)\n'
    edit(parts, '    if config.name == "native":\n', f'{branch}    if config.name == "native":\n')
    native = "from whet.engines.native.native_engine"
    edit(parts, native, f"from whet.engines.counting import CountingEngine\n{native}")
    return f"""{CHECK_ENGINE}
whet("train grpo-sorting engine.name=counting {TINY} --runs engine")
assert CountingEngine.asked
"""


HOW_TOS = {
    "algorithm": add_an_algorithm,
    "preference loss": add_a_preference_loss,
    "reward-model loss": add_a_reward_model_loss,
    "task": add_a_task,
    "model family": add_a_model_family,
    "engine": add_an_engine,
}
SAID = {
    "algorithm": ("−sign(A)·|A|^power·log π", "power = 1.5"),
    "preference loss": ("−log σ(β(w − l)/2)", "β = 0.3", "losses.py:softened: preference loss (pairs)"),
    "reward-model loss": ("(w − l − wanted)²", "squared_gap: reward-model loss (pairs)"),
    "task": ("Writes a digit twice",),
    "model family": ("new mistral",),
    "engine": (),
}


@pytest.mark.parametrize("added", HOW_TOS)
def test_add(told, added):
    failed, said = told[added]
    assert not failed, failed + said[-1500:]
    for words in SAID[added]:
        assert words in said


TABLES = """
read_the_tables = [
    "tests/test_layers.py::test_no_arrow_inside_a_room_points_the_wrong_way",
    "tests/test_layers.py::test_no_room_is_crowded",
    "tests/algorithms/test_table.py",
    "tests/algorithms/test_preference_table.py",
    "tests/algorithms/test_preference.py::test_every_loss_has_an_oracle",
    "tests/config/test_objective.py",
    "tests/models/test_load.py::test_every_family_is_compared_with_transformers",
    "tests/tasks/test_loading.py::test_names_and_classes_agree",
]
assert pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "-x", *read_the_tables]) == 0
"""


def test_what_was_added_edits_no_list_of_an_unrelated_test(told):
    failed, said = told["tests of the tables"]
    assert not failed, said[-3000:]
