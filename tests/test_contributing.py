"""The four how-tos of CONTRIBUTING.md, followed to the letter in a copy of the source tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
TINY = "steps=1 rollout.prompts=4 eval.examples=4 device=cpu"


@pytest.fixture
def house(tmp_path):
    """A copy of the source that may be changed."""
    shutil.copytree(ROOT / "src", tmp_path / "src")  # with its bytecode, which saves compiling all of it
    return tmp_path


def run(house, *command):
    environment = {**os.environ, "PYTHONPATH": f"{house / 'src'}{os.pathsep}{house}"}
    done = subprocess.run([sys.executable, *command], cwd=house, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return done.stdout + done.stderr


def edit(path, before, after):
    text = path.read_text("utf-8")
    assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times in {path}"
    path.write_text(text.replace(before, after), "utf-8")


def test_each_how_to_has_at_most_ten_lines():
    for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]:
        assert section.startswith("Add a")
        assert len(section.strip().splitlines()) - 2 <= 10, section.splitlines()[0]


def test_add_an_algorithm(house):
    surrogates, table = (house / "src/whet/algorithms" / name for name in ("surrogates.py", "table.py"))
    with surrogates.open("a", encoding="utf-8") as file:
        file.write(
            "\n\ndef tempered(logprobs: Tensor, advantages: Tensor, *, power: float = 2.0) -> Tensor:\n"
            '    """−sign(A)·|A|^power·log π: strong opinions count more. Nobody 2026."""\n'
            "    return -advantages.sign() * advantages.abs() ** power * logprobs\n"
        )
    edit(table, "SURROGATES = _named(", "SURROGATES = _named(s.tempered, ")
    row = '"mine": row(a.center, s.tempered, w.token_mean, "Nobody26"),'
    edit(table, '    "dr_grpo":', f'    {row}\n    "dr_grpo":')
    told = run(house, "-m", "whet", "explain", "grpo-sorting", "algorithm=mine", "algorithm.tempered.power=1.5")
    assert "−sign(A)·|A|^power·log π" in told
    assert "power = 1.5" in told
    run(house, "-m", "whet", "train", "grpo-sorting", "algorithm=mine", "algorithm.tempered.power=1.5", *TINY.split())
    (metrics,) = (house / "runs").glob("*/metrics.jsonl")
    assert '"step": 1' in metrics.read_text()


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


def test_add_a_task(house):
    (house / "my_module.py").write_text(TASK, "utf-8")
    run(house, "-m", "whet", "train", "grpo-sorting", "task={name: 'my_module:Doubling', most: 8}", *TINY.split())
    run(house, "-c", "from my_module import Doubling; from whet.tasks.check import check_task; check_task(Doubling())")
    shutil.copy(house / "my_module.py", house / "src/whet/tasks/doubling.py")
    table = house / "src/whet/tasks/loading.py"
    edit(table, '    "reverse": Reverse,\n', '    "reverse": Reverse,\n    "doubling": Doubling,\n')
    edit(table, "from whet.imports", "from whet.tasks.doubling import Doubling\nfrom whet.imports")
    assert "Writes a digit twice" in run(house, "-m", "whet", "tasks")


MODEL = """
import torch
from pathlib import Path
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM
from whet.models.load import load_model, model_summary
torch.manual_seed(0)
config = MistralConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=64, sliding_window=None)
theirs = MistralForCausalLM(config).eval()
theirs.save_pretrained("mistral")
assert model_summary(Path("mistral"))["implementation"] == "decoder"
ours = load_model(Path("mistral"))
tokens = torch.randint(0, 50, (2, 9))
with torch.no_grad():
    logits = ours.head(ours.hidden(tokens, torch.tensor([9, 9])))
    assert torch.allclose(logits, theirs(tokens).logits, atol=1e-4)
    Path("back").mkdir()
    ours.save(Path("back"))
    assert torch.allclose(logits, AutoModelForCausalLM.from_pretrained("back")(tokens).logits, atol=1e-4)
"""


def test_add_a_model(house):
    row = '    "mistral": _llama_like("mistral", "MistralForCausalLM"),\n    "qwen2":'
    edit(house / "src/whet/models/decoder/families.py", '    "qwen2":', row)
    run(house, "-c", MODEL)


ENGINE = '''
from whet.engines.native.engine import NativeEngine


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


def test_add_an_engine(house):
    (house / "src/whet/engines/counting.py").write_text(ENGINE, "utf-8")
    shutil.copytree(ROOT / "tests", house / "tests", ignore=lambda _, names: [n for n in names if n != "small.py"])
    run(house, "-c", CHECK_ENGINE)
    edit(house / "src/whet/config/parts.py", 'Literal["native", "vllm"]', 'Literal["native", "vllm", "counting"]')
    parts = house / "src/whet/train/setup/build.py"
    branch = '    if config.name == "counting":\n        return CountingEngine(policy, tokenizer)\n'
    edit(parts, '    if config.name == "native":\n', f'{branch}    if config.name == "native":\n')
    native = "from whet.engines.native.engine"
    edit(parts, native, f"from whet.engines.counting import CountingEngine\n{native}")
    run(house, "-m", "whet", "train", "grpo-sorting", "engine.name=counting", *TINY.split())
