"""Model directories that are damaged, foreign or hostile: refused by name, and no code of theirs ever runs."""

import json
import math
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import GPTNeoConfig, GPTNeoForCausalLM

import whet as package
from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from whet.files import LARGEST_OBJECT


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def model(tmp_path: Path, run: Path) -> Path:
    plain = shutil.ignore_patterns("manifest.json")  # which would name every file that differs, whatever is wrong in it
    return Path(shutil.copytree(run / "best_model", tmp_path / "model", ignore=plain))


def change_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def truncate(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def rename_tensor(model: Path) -> None:
    path = model / "model.safetensors"
    tensors = load_file(path)
    tensors["renamed"] = tensors.pop(sorted(tensors)[0])
    save_file(tensors, path)


def foreign_model(model: Path) -> Path:
    """A model of an architecture that transformers runs, with the same tokeniser."""
    config = GPTNeoConfig(
        vocab_size=json.loads((model / "config.json").read_text())["vocab_size"],
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        attention_types=[[["global"], 1]],
        max_position_embeddings=16,
    )
    directory = model.parent / "foreign"
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("config.json", "model.safetensors"))
    GPTNeoForCausalLM(config).save_pretrained(directory)
    return directory


def grow(path: Path, size: int = LARGEST_OBJECT + 1) -> None:
    """A file that is too large, of which the disk keeps nothing."""
    with path.open("ab") as file:
        file.truncate(size)


def lie(model: Path, entry: dict[str, Any] | None = None, *, length: int | None = None, size: int = 0) -> None:
    """Weights whose header says of one tensor what is not so, or of itself."""
    path = model / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    names = sorted((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    header[names[1]] |= entry or {}
    text = json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data[end:])
    if size:
        grow(path, size)


def shards(model: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    text = json.dumps({"weight_map": {"transformer.wte.weight": name}}) if len(name) < 99 else '{"weight_map": ' + name
    (model / "model.safetensors.index.json").write_text(text)


def many_tokens(model: Path) -> None:
    path = model / "tokenizer.json"
    listed = ", ".join(map('"t{0}": {0}'.format, range(1, 1_100_001)))
    path.write_text(path.read_text().replace('"vocab": {', '"vocab": {' + listed + ", ", 1))


def many_added(model: Path) -> None:
    path = model / "tokenizer_config.json"
    listed = ", ".join(map('"{0}": {{"content": "<{0}>", "special": true}}'.format, range(70_000)))
    path.write_text('{"added_tokens_decoder": {' + listed + "}}")


def remove_tokenizer(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut weights": (lambda m: truncate(m / "model.safetensors", 0.5), "model.safetensors is damaged or truncated"),
    "cut header": (lambda m: truncate(m / "model.safetensors", 0.001), "model.safetensors is damaged or truncated"),
    "empty weights": (lambda m: truncate(m / "model.safetensors", 0), "model.safetensors is damaged or truncated"),
    "garbage weights": (
        lambda m: (m / "model.safetensors").write_bytes(b"\x80" * 4096),
        "model.safetensors is damaged or truncated",
    ),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "has no weights: expected model.safetensors"),
    "no config": (lambda m: (m / "config.json").unlink(), "holds no model (no config.json"),
    "config not JSON": (lambda m: (m / "config.json").write_text("{"), "config.json is not valid JSON"),
    "config not text": (lambda m: (m / "config.json").write_bytes(b"\xff\xfe"), "config.json is not valid JSON"),
    "config a list": (lambda m: (m / "config.json").write_text("[]"), "config.json holds a JSON list"),
    "config empty": (lambda m: (m / "config.json").write_text("{}"), "config.json names no model_type"),
    "config of another size": (lambda m: change_config(m, n_layer=3), "lacks tensor"),
    "config without a key": (lambda m: change_config(m, n_embd=None), "config.json: 'n_embd' is missing"),
    "config of a wrong type": (lambda m: change_config(m, n_layer="three"), "'n_layer' is 'three': expected int"),
    "config of an absurd size": (lambda m: change_config(m, n_layer=-1), "config.json"),
    "config nested deeply": (
        lambda m: (m / "config.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000),
        "config.json is not valid JSON (nested too deeply)",
    ),
    "huge config": (lambda m: grow(m / "config.json"), "config.json has 67108865 bytes, more than"),
    "config with a number of 9999 digits": (
        lambda m: (m / "config.json").write_text('{"model_type": "gpt2", "n_layer": ' + "9" * 9999 + "}"),
        "config.json is not valid JSON",
    ),
    "10^9 layers": (lambda m: change_config(m, n_layer=10**9), "'n_layer' is 1000000000: expected at most"),
    "10000 layers": (lambda m: change_config(m, n_layer=10**4), "'n_layer' is 10000, but the weights have only"),
    "10^12 width": (lambda m: change_config(m, n_embd=10**12), "'n_embd' is 1000000000000: expected at most"),
    "10^9 ids": (lambda m: change_config(m, vocab_size=10**9), "'vocab_size' is 1000000000: expected at most"),
    "10^300 positions": (lambda m: change_config(m, n_positions=10**300), "'n_positions' is 10000000000000000000…"),
    "many ids": (lambda m: change_config(m, vocab_size=2**20), "config.json implies (1048576, 16)"),
    "no width": (lambda m: change_config(m, n_embd=0), "'n_embd' is 0: expected a whole number above 0"),
    "true layers": (lambda m: change_config(m, n_layer=True), "'n_layer' is True: expected int"),
    "half a layer": (lambda m: change_config(m, n_layer=0.5), "'n_layer' is 0.5: expected int"),
    "NaN in a norm": (lambda m: change_config(m, layer_norm_epsilon=math.nan), "'layer_norm_epsilon' is nan: expected"),
    "infinite norm": (lambda m: change_config(m, layer_norm_epsilon=math.inf), "'layer_norm_epsilon' is inf: expected"),
    "huge norm": (lambda m: change_config(m, layer_norm_epsilon=10**400), "'layer_norm_epsilon' is 1000"),
    "header beyond its file": (lambda m: lie(m, length=2**62), "model.safetensors is damaged or truncated"),
    "huge header": (lambda m: lie(m, length=2**26, size=2**27), "has a header of 67108864 bytes, more than"),
    "offsets outside": (lambda m: lie(m, {"data_offsets": [0, 10**12]}), "model.safetensors is damaged or truncated"),
    "offsets backwards": (lambda m: lie(m, {"data_offsets": [8, 0]}), "model.safetensors is damaged or truncated"),
    "overlap": (lambda m: lie(m, {"data_offsets": [0, 8], "shape": [2]}), "model.safetensors is damaged or truncated"),
    "shape of another size": (lambda m: lie(m, {"shape": [10**9, 10**9]}), "model.safetensors is damaged or truncated"),
    "negative shape": (lambda m: lie(m, {"shape": [-1]}), "model.safetensors is damaged or truncated"),
    "type unknown": (lambda m: lie(m, {"dtype": "F31"}), "model.safetensors is damaged or truncated"),
    "shards elsewhere": (lambda m: shards(m, "../../../etc/passwd"), "has no weight_map of file names"),
    "shards anywhere": (lambda m: shards(m, "/etc/passwd"), "has no weight_map of file names"),
    "shard above": (lambda m: shards(m, ".."), "has no weight_map of file names"),
    "index nested deeply": (lambda m: shards(m, "[" * 200_000), "index.json is not valid JSON (nested too deeply)"),
    "broken template": (
        lambda m: (m / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }"),
        "the chat template of",
    ),
    "hostile template": (lambda m: (m / "chat_template.jinja").write_text("{{ 'a' * 10**10 }}"), "MiB of memory"),
    "huge template": (lambda m: grow(m / "chat_template.jinja", 10**8), "chat_template.jinja has 100000000 bytes"),
    "template no file": (lambda m: os.mkfifo(m / "special_tokens_map.json"), "is no regular file"),
    "tokenizer config nested": (
        lambda m: (m / "tokenizer_config.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000),
        "tokenizer",
    ),
    "huge tokens map": (lambda m: grow(m / "special_tokens_map.json"), "special_tokens_map.json has 67108865 bytes"),
    "many tokens": (lambda m: many_tokens(m), "tokenizer.json lists too many tokens (1100"),
    "many added tokens": (lambda m: many_added(m), "tokenizer_config.json lists too many tokens (70000 times"),
    "generation config a list": (lambda m: (m / "generation_config.json").write_text("[1]"), "generation_config.json"),
    "unknown architecture": (lambda m: change_config(m, model_type="martian"), "cannot be loaded by transformers"),
    "renamed tensor": (rename_tensor, "lacks tensor"),
    "no tokenizer": (remove_tokenizer, "holds no tokenizer"),
    "cut tokenizer": (lambda m: truncate(m / "tokenizer.json", 0.5), "the tokenizer in"),
    "garbage tokenizer": (lambda m: (m / "tokenizer.json").write_bytes(b"\xff" * 99), "the tokenizer in"),
    "tokenizer config not JSON": (lambda m: (m / "tokenizer_config.json").write_text("{"), "tokenizer"),
}


# What shows only when config.json and weights are compared.
ONLY_BY_LOADING = ("config of another size", "renamed tensor", "10000 layers", "many ids")


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_model_is_refused_by_every_command(whet: Whet, model: Path, case: str) -> None:
    spoil, told = DAMAGE[case]
    spoil(model)
    messages = [
        refused(whet, "sample", model, "12>"),
        refused(whet, "eval", model, "--task", "sorting", "--examples", 2),
        refused(whet, "chat", model, stdin="12\n"),
        refused(whet, "train", write_recipe(model.parent), f"model={{path: {model}}}", "--runs", model.parent / "runs"),
    ]
    for message in messages:
        assert told in message
        assert str(model) in message
    assert list(model.parent.glob("runs/*")) == []


@pytest.mark.parametrize("case", [case for case in DAMAGE if case not in ONLY_BY_LOADING])
def test_inspect_refuses_what_its_headers_give_away(whet: Whet, model: Path, case: str) -> None:
    spoil, told = DAMAGE[case]
    spoil(model)
    if case != "unknown architecture":  # whose facts can be told without running it
        assert told in refused(whet, "models", "inspect", model)


CLAIMS: dict[str, tuple[dict[str, object], str]] = {
    "layers": ({"num_layers": 10**9}, "'num_layers' is 1000000000, but the weights have only 17 tensors"),
    "repeats": ({"attention_types": [[["global"], 10**9]]}, "'attention_types[]' holds 1000000000: expected at most"),
    "ids": ({"vocab_size": 10**9}, "describes a model of 16000003776 elements, but the weights hold"),
    "width": ({"hidden_size": 10**12}, "cannot be loaded by transformers"),
    "positions": ({"max_position_embeddings": 10**6}, "describes a model of 10000"),
    "a NaN": ({"hidden_size": math.nan}, "cannot be loaded by transformers"),
    "no heads": ({"num_heads": 0}, "cannot be loaded by transformers"),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_what_transformers_would_build_is_bounded_too(whet: Whet, model: Path, case: str) -> None:
    foreign = foreign_model(model)
    claimed, told = CLAIMS[case]
    change_config(foreign, **claimed)
    assert told in refused(whet, "sample", foreign, "12>")


def test_an_adapter_does_not_lead_to_another_directory(whet: Whet, model: Path) -> None:
    foreign = foreign_model(model)
    (foreign / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    assert "holds an adapter (adapter_config.json)" in refused(whet, "sample", foreign, "12>")


def test_a_tokenizer_with_ids_that_the_model_lacks(whet: Whet, model: Path) -> None:
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["1"] = 4 * 10**9
    path.write_text(json.dumps(content))
    assert "a prompt holds the id 4000000000 and the model has" in refused(whet, "sample", model, "12>")


def test_a_template_is_bounded_also_where_it_is_not_asked_for(whet: Whet, model: Path) -> None:
    (model / "chat_template.jinja").write_text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    assert "it calls itself without end" in refused(whet, "sample", model, "12>", "--raw")


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo"])  # our decoder's, and one that transformers runs
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_end_every_command(whet: Whet, model: Path, family: str, value: float) -> None:
    if family == "gpt_neo":
        model = foreign_model(model)
    path = model / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if name.endswith("mlp.c_fc.weight"))
    tensors[name][0, 0] = value
    save_file(tensors, path, metadata={"format": "pt"})
    for arguments in (
        ("eval", model, "--task", "sorting", "--examples", 2),
        ("sample", model, "12>"),
        ("sample", model, "12>", "--temperature", 0),
        ("chat", model),
    ):
        message = refused(whet, *arguments, code=1, stdin="12\n")
        where = (
            " at token 1 of its completion of prompt 1" if family == "gpt2" else ""
        )  # the other is tried when loaded
        assert f"the model's logits are not finite{where}: 1 of the " in message
        assert ("layers.0.mlp.up_proj.weight" if family == "gpt2" else "h.0.mlp.c_fc.weight") in message


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_the_trap_works(tmp_path: Path) -> None:
    # What an unpickler would call, called by hand. A trap that never springs would make any loader look safe.
    function, arguments = Trap(tmp_path / "sprung").__reduce__()
    assert callable(function)
    function(*arguments)
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "pytorch_model-00001-of-00002.bin"])
def test_pickled_weights_are_refused_without_being_opened(whet: Whet, model: Path, name: str) -> None:
    sprung = model.parent / "sprung"
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Trap(sprung)))
    for architecture in ("gpt2", "gpt_neo"):  # ours, and one that transformers would load
        change_config(model, model_type=architecture)
        for arguments in (("sample", model, "12>"), ("models", "inspect", model)):
            assert f"has only pickled weights ({name}), which can run code" in refused(whet, *arguments)
    assert not sprung.exists()


def test_pickles_beside_good_weights_are_not_opened(whet: Whet, model: Path) -> None:
    sprung = model.parent / "sprung"
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "tokenizer.pkl", "scheduler.pt"):
        (model / name).write_bytes(pickle.dumps(Trap(sprung)))
    assert whet("sample", model, "12>").code == 0
    assert not sprung.exists()


CODE = """
open({sprung!r}, "w").close()
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
class Config(GPT2Config): model_type = "trap"
class Model(GPT2LMHeadModel): config_class = Config
class Tok(PreTrainedTokenizerFast): pass
"""


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neo", "trap"])
def test_code_in_a_model_directory_does_not_run(whet: Whet, model: Path, model_type: str) -> None:
    sprung = model.parent / "sprung"
    (model / "trap.py").write_text(CODE.format(sprung=str(sprung)))
    auto = {
        "AutoConfig": "trap.Config",
        "AutoModelForCausalLM": "trap.Model",
        "AutoTokenizer": ["trap.Tok", "trap.Tok"],
    }
    change_config(model, model_type=model_type, auto_map=auto, architectures=["Model"])
    tokenizer = model / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "auto_map": auto}))
    if model_type == "gpt2":  # our decoder reads it as what it says it is
        assert whet("sample", model, "12>").code == 0
    else:
        refused(whet, "sample", model, "12>", stdin="y\ny\ny\n")
    whet("models", "inspect", model, stdin="y\n")
    assert not sprung.exists()


def test_the_source_never_unpickles_and_never_trusts_remote_code() -> None:
    forbidden = re.compile(
        r"\btorch\.load\b|\bimport pickle\b|\bpickle\.|\bjoblib\b|\bdill\b|\bmarshal\.|allow_pickle\s*=\s*True"
        r"|\bshelve\b|\bnp\.load\b|_object_list|all_gather_object|trust_remote_code\s*=\s*(?!False)|yaml\.(unsafe_|full_)?load\("
        r"|\beval\(|\bexec\(|weights_only"
    )
    # What the sandbox isolates runs code; nothing else does.
    outside = [path for path in Path(package.__file__).parent.rglob("*.py") if path.parent.name != "sandbox"]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(outside)
        for line in path.read_text().splitlines()
        if forbidden.search(line) and "Loader=_Loader" not in line
    ]
    assert found == []
