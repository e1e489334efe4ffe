"""Says which prompts a run is trained and evaluated on, and whether they go through the model's chat template."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from whet.config import OfflineConfig, OnlineConfig, TrainConfig
from whet.config.eval_config import has_prompts_of
from whet.config.model_config import ModelConfig
from whet.config.parts import TaskConfig
from whet.data.corpus.corpus_task import CorpusTask
from whet.errors import UserError
from whet.evaluate.measures import measure_of
from whet.files.disk_rows import on_disk
from whet.models.protocol import Tokenizer
from whet.models.text.template import PLAIN_TEMPLATE
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Example, Message
from whet.runs.directory import RunDirectory
from whet.tasks.protocol import Task
from whet.tasks.selection.mixture import MixedTasks
from whet.tasks.stored import StoredTask

CORPUS = "corpus"
CHANCE = 0.5  # of pairs
CHAT_KEYS = ("chat_template", "system_prompt")  # of the section `model`


def prompts_line(config: TrainConfig, task: Task) -> str:
    """The prompts of the task: how many are trained on, how many held out, and how the model reads them."""
    if isinstance(task, MixedTasks):
        return f"prompts: {task.described()}"
    if not isinstance(task, StoredTask):
        return f"prompts: made by {_maker(config.task)}"
    training, held_out = task.sides
    is_split = bool(held_out) and config.task in config.evaluation_tasks.values()
    source = f" and {len(held_out):,} held out of" if is_split else ", all of"
    stored = ", kept on disk" if on_disk(training) else ""
    form = _form(training, held_out)
    return f"prompts: {len(training):,} to learn from{source} {_files(config.task)}, {form}{stored}"


def evaluation_lines(config: TrainConfig, evaluation: Mapping[str, Task]) -> list[str]:
    """One line for each evaluation set that is not held out of the prompts that are trained on."""
    lines = []
    for name, task in evaluation.items():
        settings = config.evaluation_tasks[name]
        # Offline runs count the rows of `eval.data` where they are read.
        if settings == config.task or not (isinstance(config, OnlineConfig) or name in config.eval.task):
            continue
        asked = task.held_out(config.eval.examples)
        count, source = f"{len(asked):,}", f"made by {_maker(settings)}"
        if isinstance(task, StoredTask):
            stored = len(task.sides[1])
            count = f"{count} of {stored:,}" if stored > len(asked) else count
            source = f"of {_files(settings)}, {_form(asked)}"
        lines.append(f"evaluation{' set ' * bool(name)}{name}: {count} prompts {source}")
    return lines


def _short_answers(config: OnlineConfig) -> list[str]:
    """A note where windows of a text have answers of fewer characters than a completion has tokens."""
    longest = config.rollout.max_tokens
    if config.task.name != CORPUS:
        return []
    answer = config.task.options.get("answer_characters", CorpusTask.answer_characters)
    if answer >= longest:
        return []
    return [
        f"note: task.answer_characters is {answer} and rollout.max_tokens {longest}: tokens beyond the answer get no "
        "reward; raise task.answer_characters"
    ]


def reward_lines(config: TrainConfig) -> list[str]:
    """The rewards of an online run beside those of its task; a warning about a reward model no better than chance."""
    if isinstance(config, OnlineConfig) and config.reward.tokens is not None:
        return [f"reward: every token by the answer's ({config.reward.tokens.mode})", *_short_answers(config)]
    if not isinstance(config, OnlineConfig) or not (config.reward.functions or config.reward.model):
        return []
    named = [f"{one.use}{f' × {one.weight:g}' * (one.weight != 1)}" for one in config.reward.functions]
    if config.reward.model is None:
        return [f"reward: {', '.join(named)}"]
    path = Path(config.reward.model.path)
    run = RunDirectory.find(path) or RunDirectory.find(path.parent)
    best = ((run.best_info() if run else None) or {}) if path.is_dir() else {}
    quality, warning = "", []
    if "metric" in best:
        measure = measure_of(best["metric"])
        quality = f" ({measure.label} {measure.text(best['value'])})"
        if measure.metric.endswith("/pair_accuracy") and best["value"] <= CHANCE:
            warning = [f"warning: the reward model {path} ranks held-out pairs no better than chance{quality}"]
    weight = config.reward.model.weight
    named.append(f"reward model {path}{f' × {weight:g}' * (weight != 1)}{quality}")
    return [f"reward: {', '.join(named)}", *warning]


def chat_note(
    model: ModelConfig, tokenizer: Tokenizer, prompts: Iterable[str | Sequence[Message]], *, of: str, key: str = ""
) -> str:
    """A note if prompts are plain text although the model has a chat template, else empty; `key` sends them through."""
    if not _has_template(tokenizer) or not any(isinstance(prompt, str) for prompt in prompts):
        return ""
    keys = " and ".join(f"model.{name}" for name in CHAT_KEYS if getattr(model, name))
    unused = f"{keys} without effect: " if keys else ""
    sends = f"; {key} sends them as user messages" if key else ""
    return f"{unused}the prompts of {of} are plain text and are not sent through the model's chat template{sends}"


def chat_note_of_task(config: TrainConfig, task: Task, tokenizer: Tokenizer) -> str:
    """`chat_note` on the prompts of the task; if it makes them, only where the recipe sets a template to no effect."""
    if isinstance(config, OfflineConfig) and config.data is not None and has_prompts_of(config.task, config.data):
        return ""  # said where the rows are read
    if isinstance(task, StoredTask):
        as_data = "data.chat=true (task.chat=true in a recipe with a task)"
        key = "task.chat=true" if config.task.name == "rows" else as_data
        prompts = (example.prompt for side in task.sides for example in side)
        return chat_note(config.model, tokenizer, prompts, of=_files(config.task), key=key)
    if not any(getattr(config.model, name) for name in CHAT_KEYS):
        return ""
    prompts = (example.prompt for example in task.held_out(1))
    return chat_note(config.model, tokenizer, prompts, of=_maker(config.task))


def _has_template(tokenizer: Tokenizer) -> bool:
    """Whether there is a chat template that adds something to a message."""
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not tokenizer.has_chat_template:
        return False
    try:
        return tokenizer.chat.source() != PLAIN_TEMPLATE
    except UserError:  # it has several, none of which is used by default
        return False


def _files(task: TaskConfig) -> str:
    """The files of a task with stored prompts."""
    several = [one if isinstance(one, str) else one["path"] for one in task.options.get("sets") or ()]
    return " and ".join(map(str, several or [task.options.get("path") or f"task {task.name}"]))


def _maker(task: TaskConfig) -> str:
    """A task that makes its prompts, with the options that are set."""
    options = ", ".join(f"{key}={value}" for key, value in task.options.items())
    return f"task {task.name}" + (f" ({options})" if options else "")


def _form(*sides: Sequence[Example]) -> str:
    """How the model reads these prompts."""
    turns = Counter(0 if isinstance(one.prompt, str) else min(2, len(one.prompt)) for side in sides for one in side)
    plain = turns[0]
    if plain == turns.total():
        return "as plain text"
    messages = f"as {'conversations' if turns[2] else 'user messages'} through the chat template"
    return f"{messages}, but {plain:,} as plain text" if plain else messages
