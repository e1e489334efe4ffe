"""The arrows between rooms, as ARCHITECTURE.md states them, read from the imports."""

import ast
import re
from pathlib import Path

import pytest

from whet.tasks.loading import TASKS

SOURCE = Path(__file__).resolve().parents[1] / "src" / "whet"
ARCHITECTURE = SOURCE.parents[1] / "ARCHITECTURE.md"
ROOTS = {"errors", "records", "streams", "user_code"}

MAY_IMPORT = {
    "errors": set(),
    "records": set(),
    "streams": set(),
    "late_torch": set(),
    "algorithms": {"late_torch"},
    "user_code": set(),
    "imports": {"errors", "user_code"},
    "limited_process": set(),
    "files": {"records", "errors", "imports"},
    "manifests": set(),
    "tasks": {"records", "errors", "imports", "files", "user_code", "limited_process", "tool_text"},
    "data": {"tasks", "records", "errors", "files", "tool_text"},
    "distributed": {"errors", "imports"},
    "models": {"records", "errors", "files", "manifests", "limited_process", "imports", "late_torch", "tool_text"},
    "batching": {"algorithms", "distributed", "models", "records", "errors", "streams"},
    "engines": {"models", "batching", "records", "errors", "streams", "imports"},
    "turns": {"engines", "models", "tasks", "records", "errors"},
    "rollout": {"turns", "engines", "models", "tasks", "records", "errors", "streams"},
    "runs": {"errors", "manifests", "imports"},
    "evaluate": {"turns", "engines", "models", "tasks", "distributed", "records", "errors", "streams"},
    "redteam": {"engines", "evaluate", "files", "records", "errors", "streams"},
    "control": {"models", "tasks", "errors", "imports", "streams", "user_code"},
    "learn": {"errors", "limited_process", "user_code"},
    "number_format": set(),
    "tool_text": set(),
    "doctor": {"runs", "evaluate", "number_format", "errors"},
    "metrics": {"doctor", "evaluate", "number_format"},
    "report": {"runs", "evaluate", "data", "doctor", "number_format", "errors"},
    "ui": {"runs", "evaluate", "doctor", "metrics", "report", "errors"},
    "config": {"algorithms", "records", "errors", "imports"},
    "recipe": {"config", "errors", "recipes", "runs"},
    "recipes": set(),
    "launch": {"errors", "imports", "files", "runs", "tasks"},
}
IN_ROOMS = {"puzzles", "programs", "instructions", "gym", "environments"}  # tasks with a package of their own
TASK_FILES = {task.__module__.split(".")[2] for task in TASKS.values()} - IN_ROOMS
ANY_ENGINE = {"protocol", "limits", "native", "http"}  # of those that are not named below
COMMON_TO_MODELS = {"adapters", "layers", "storage", "protocol", "finite", "decoder", "foreign"}
LAUNCHERS = {"slurm", "ray_job", "skypilot", "modal_app", "kubernetes"}
SHAPE_AND_TOKENIZER = {"model_shape", "model_tokenizer"}
ROOMS_INSIDE = {
    "algorithms": {
        **{key: set() for key in ("cells", "selection")},
        **{key: {"cells"} for key in ("advantages", "policy_loss", "masking")},
        "table": {"cells", "advantages", "policy_loss", "masking"},
        "off_policy": set(),
        "preference": {"cells"},
    },
    "cli": {
        "terminal": set(),
        "progress": {"terminal"},
        "arguments": {"terminal"},
        "key_flags": set(),
        "experiments": {"terminal", "progress"},
        "commands": {"terminal", "progress", "arguments", "key_flags", "experiments"},
        "app": {"terminal", "commands", "key_flags"},
    },
    "models": {
        "adapters": {"storage"},
        "sizes": {"layers"},
        "layers": {"adapters"},
        "storage": set(),
        "finite": set(),
        "memory_errors": set(),
        "protocol": {"layers"},
        "kernels": {"layers"},
        "cpu": {"layers", "kernels"},
        "decoder": {"adapters", "layers", "kernels", "cpu", "storage", "protocol"},
        "text": {"storage", "protocol"},
        "download": {"adapters", "storage", "text"},
        "references": {"layers"},
        "logprobs": {"layers", "kernels", "protocol", "finite"},
        "masked_logprobs": {"logprobs", "protocol"},
        "foreign": {"layers", "storage", "protocol", "finite"},
        "model_shape": {"adapters", "layers", "storage", "protocol", "decoder", "download"},
        "model_tokenizer": {"model_shape", "protocol", "text"},
        "load": {*COMMON_TO_MODELS, "model_shape"},
        "half_precision": {"adapters", "decoder"},
        "merging": {"adapters", "download", "load", "model_tokenizer", "reward", "text"},
        "export": {"adapters", "layers", "storage", "decoder", "download", "load", *SHAPE_AND_TOKENIZER, "text"},
        "reward": {*COMMON_TO_MODELS, "load", *SHAPE_AND_TOKENIZER, "text"},
    },
    "tasks": {
        "protocol": set(),
        "space": set(),
        "pattern_worker": set(),
        "maths": {"pattern_worker"},
        "matching": {"pattern_worker", "maths"},
        "stored": {"space"},
        **{name: {"space", "matching"} for name in TASK_FILES},
        "puzzles": {"space", "procedural", "stored", "maths"},
        "instructions": {"space", "stored"},
        "sandbox": set(),
        "programs": {"space", "stored", "sandbox"},
        "blending": set(),
        "gym": {"space", "blending", "puzzles", "maths"},
        "loading": {"protocol", *IN_ROOMS, *TASK_FILES},
        "selection": {"protocol", "blending", "loading", "stored", "space"},
        "grading": {"protocol", "loading", "selection", "blending"},
        "check": {"protocol"},
        "environments": {"space", "puzzles", "maths"},
        "stepping": {"protocol", "loading", "selection", "grading", "check"},
        "tools": {"protocol", "loading", "space", "matching", "sandbox"},
        "reward_library": set(),
        "shingles": set(),
        "bench": {"protocol", "loading", "grading", "check", "space", "shingles", "maths"},
    },
    "report": {
        "card": set(),
        "formatting": set(),
        "figures": {"formatting"},
        "redteam": {"formatting"},
        "run": {"formatting", "figures", "redteam"},
        "dataset": {"formatting", "figures"},
        "comparison": {"formatting", "figures"},
    },
    "ui": {
        "library": set(),
        "answers": {"library"},
        "server": {"answers", "library"},
        "export": {"answers", "library"},
    },
    "engines": {
        "engine_protocol": set(),
        "check_engine": {"engine_protocol"},
        "rounds": {"engine_protocol"},
        "native": {"engine_protocol", "rounds"},
        "denoising": {"engine_protocol", "native"},
        "http": {"engine_protocol"},
        "vllm": {"http", "engine_protocol", "check_engine"},
    },
    "api": {
        "given": set(),
        "local_engine": set(),
        "model_limits": {"local_engine"},
        "own_measures": {"local_engine", "model_limits"},
        "loaded_model": {"given", "local_engine", "model_limits", "own_measures"},
        "infilling": {"loaded_model"},
        "run": {"loaded_model", "model_limits"},
        "reward_scores": {"given", "loaded_model"},
        "training": {"given", "run"},
        "several": {"given", "run", "training"},
    },
    "launch": {
        "job": set(),
        "tool": {"job"},
        "shell": {"job"},
        "launches": {"tool"},
        "yaml_text": set(),
        "slurm": {"job", "shell", "tool"},
        "skypilot": {"job", "shell", "tool", "yaml_text"},
        "kubernetes": {"job", "shell", "tool", "yaml_text"},
        "modal_app": {"job", "tool"},
        "ray_job": {"job", "tool", "yaml_text"},
        "ray_nodes": {"job", "ray_job", "shell"},
        "process_tree": set(),
        "supervisor": {"job", "launches", "process_tree"},
        "local": {"job", "process_tree", "shell", "tool"},
        "submission": {*("job", "tool", "launches", "local"), *LAUNCHERS},
    },
    "redteam": {
        "cases": set(),
        "edits": {"cases"},
        "probes": {"cases", "edits"},
        "asking": {"cases"},
        "effects": {"asking", "cases", "edits", "probes"},
        "suffix_search": {"asking", "cases", "probes"},
        "reward_attack": {"asking", "cases", "effects", "probes", "suffix_search"},
        "refusals": set(),
        "policy_probe": {"cases", "refusals"},
        "refusal_judge": {"policy_probe"},
        "prompt_files": {"policy_probe"},
    },
    "learn": {
        "exercise": set(),
        "plain_numbers": set(),
        "calling": {"exercise"},
        "comparison": {"exercise", "calling"},
        "language": {"exercise", "comparison", "plain_numbers"},
        "policy_gradients": {"exercise", "comparison", "plain_numbers"},
        "preferences": {"exercise", "comparison", "plain_numbers"},
        "bugs": {"exercise", "comparison", "plain_numbers", "language", "policy_gradients"},
        "stubs": set(),
        "catalogue": {"exercise", "language", "policy_gradients", "preferences", "bugs"},
        "examiner_process": {"exercise", "catalogue"},
        "examination": {"exercise"},
        "folder": {"exercise", "catalogue"},
    },
    "control": {
        "seeds": set(),
        "spaces": set(),
        "environments": {"spaces"},
        "processes": {"environments", "spaces"},
        "grid_world": {"spaces"},
        "distributions": {"spaces"},
        "mlp": set(),
        "networks": {"mlp"},
        "normalization": set(),
        "fragments": set(),
        "policies": {"spaces", "distributions", "mlp", "networks", "normalization"},
        "off_policy": {"mlp", "spaces"},
        "playing": {"environments", "policies"},
        "batched": {"spaces", "policies", "playing"},
    },
    "train": {
        "optimizers": set(),
        "spreading": set(),
        "conversations": set(),
        "reward_workers": set(),
        "setup": {"optimizers", "spreading", "conversations", "reward_workers"},
        "session": {"setup", "optimizers", "plan"},
        "rows": {"setup", "session", "optimizers", "spreading"},
        "rollout_pool": {"setup"},
        "online": {"setup", "session", "rows", "optimizers", "spreading", "rollout_pool"},
        "explain": {"setup", "optimizers", "plan", "rollout_pool"},
        "plan": {"setup", "optimizers"},
        "simulation": {"plan"},
        "check": set(),
        "preflight": {"setup", "online", "rows", "optimizers", "plan", "spreading"},
        "control": {"session", "setup", "optimizers"},
        "off_policy": {"control", "session", "setup", "optimizers"},
        "start": {"online", "rows", "control", "off_policy", "session", "setup", "explain"},
        "experiments": {"start", "session", "setup", "explain"},
    },
}
FILES = sorted(path for path in SOURCE.rglob("*.py"))


def room_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def _is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path, *, depth=1):
    """The rooms and the outside modules that a file imports, anywhere in it.

    With depth 2 rooms inside of rooms, where types alone may be imported from anywhere.
    """
    ours, others = set(), set()
    tree = ast.parse(path.read_text("utf-8"))
    only_types = {id(inner) for node in ast.walk(tree) if _is_for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        names = []
        if depth > 1 and id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "whet":
                ours.add(".".join(parts[1 : 1 + depth]))
            else:
                others.add(name)
    return ours, others


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_arrow_points_the_wrong_way(path):
    room = room_of(path)
    if room in {"train", "cli", "api", "__init__", "__main__"}:
        return
    ours, _ = imports(path)
    wrong = ours - MAY_IMPORT[room] - {room, "__version__"}
    assert not wrong, f"{room} must not know {sorted(wrong)}"


@pytest.mark.parametrize("room", ROOMS_INSIDE)
def test_no_arrow_inside_a_room_points_the_wrong_way(room):
    inside = ROOMS_INSIDE[room]
    for path in (SOURCE / room).rglob("*.py"):
        own = path.relative_to(SOURCE / room).with_suffix("").parts[0]
        if own != "__init__":
            seen = {name.split(".")[1] for name in imports(path, depth=2)[0] if name.startswith(f"{room}.")}
            wrong = seen - (inside.get(own, ANY_ENGINE) if room == "engines" else inside[own]) - {own}
            assert not wrong, f"{path}: {room}/{own} must not know {sorted(wrong)}"


def test_no_room_is_crowded():
    """A file that belongs nowhere means a room that is missing."""
    crowded = {room: len(list(room.glob("*.py"))) for room in {path.parent for path in FILES}}
    assert {str(room.relative_to(SOURCE)): count for room, count in crowded.items() if count > 16} == {}


def test_train_does_not_know_the_commands():
    for path in (SOURCE / "train").rglob("*.py"):
        assert not {"cli", "api"} & imports(path)[0]


def test_the_api_knows_of_commands_only_how_they_show_progress():
    seen = {name for path in (SOURCE / "api").rglob("*.py") for name in imports(path, depth=2)[0]}
    assert {name for name in seen if name.startswith("cli")} == {"cli.progress", "cli.experiments"}
    for name in ("progress", "experiments", "terminal", "commands/compare"):
        assert "api" not in imports(SOURCE / "cli" / f"{name}.py")[0]


def test_every_room_is_in_the_architecture():
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set(MAY_IMPORT) | {"train", "cli", "api"}
    text = ARCHITECTURE.read_text("utf-8")
    table = text[text.index("## Packages") : text.index("## One step")]
    assert {room for room in rooms if f"`{room}" not in table} == set()


def test_only_distributed_imports_torch_distributed():
    importers = {room_of(p) for p in FILES if any(m.startswith("torch.distributed") for m in imports(p)[1])}
    assert importers == {"distributed"}


@pytest.mark.parametrize(
    "room", ["records", "errors", "files", "tasks", "data", "config", "recipe", "runs", "launch", "metrics"]
)
def test_rooms_that_need_no_tensors(room):
    for path in FILES:
        if room_of(path) == room:
            outside = {m for m in imports(path)[1] if m.split(".")[0] == "torch"}
            allowed = {"torch.Tensor"} if room == "records" else {"torch.utils.tensorboard.SummaryWriter"}
            assert outside <= allowed, path


def test_only_cli_and_train_see_configs():
    seers = {room_of(path) for path in FILES if imports(path)[0] & {"config", "recipe"}}
    assert seers <= {"train", "cli", "api", "recipe", "config"}


def test_only_logprobs_shifts_tokens_against_logits():
    """A shift is an index that drops the first or the last position of a 2-D tensor, or moves by one."""
    found = set()
    for path in FILES:
        for line in path.read_text("utf-8").splitlines():
            code = line.split("#")[0]
            if re.search(r"\[:,\s*1:|\[:,\s*:-1|\.roll\(|columns - 1|\[\.\.\.,\s*1:|\[\.\.\.,\s*:-1", code):
                found.add(str(path.relative_to(SOURCE)))
    assert found == {"models/logprobs.py"}


def test_the_loop_has_no_algorithm_and_no_arithmetic():
    text = (SOURCE / "train" / "online" / "loop.py").read_text("utf-8")
    from whet.algorithms.table import ADVANTAGES, ALGORITHMS, KL_ESTIMATORS, SURROGATES, WEIGHTINGS

    tree = ast.parse(text)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    cells = {*ALGORITHMS, *ADVANTAGES, *SURROGATES, *WEIGHTINGS, *KL_ESTIMATORS}
    assert not cells & (names | strings)
    annotations = {id(part) for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) for part in ast.walk(n.annotation)}
    arithmetic = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.BinOp) and id(n) not in annotations]
    assert arithmetic == []
    branches = [n for n in ast.walk(tree) if isinstance(n, ast.If | ast.IfExp | ast.While | ast.Try)]
    asked = [ast.unparse(n.test) for n in branches if not isinstance(n, ast.Try)]
    assert asked == ["groups.is_short", "groups.total"]  # enough groups? any at all? and no other question
    assert len(branches) == 2
    assert "torch" not in text
    assert len(text.splitlines()) <= 70


def test_budgets():
    for path in FILES:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path}: {node.name}"
    assert not list(SOURCE.rglob("utils.py"))
