"""Checksums of the input files of a run, compared when it is resumed.

Inputs are the run's config.yaml, data, user code (tasks, rewards, cells, losses), files in a user task's options,
tokenizers, reference and reward models. The start weights are compared by fingerprint when they are loaded (`Session`);
here only their checksums in a manifest are read. Modules that user code imports are not compared.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import whet
from whet.config import CORPUS, OfflineConfig, OnlineConfig, TaskConfig, TrainConfig
from whet.config.algorithm import OwnCell
from whet.config.control import ControlConfig
from whet.config.loops import Acting, CollectConfig, Training
from whet.config.pipeline import texts
from whet.data.corpus.documents import CorpusSource, source_files
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.files.stored_rows import row_files
from whet.imports import is_object, object_source, source_file
from whet.manifests import sha256
from whet.models.download.model_hub import resolve_model
from whet.models.storage.checksums import MADE_BY_A_RUN, WEIGHTS, read_files, sealed_files
from whet.models.text.chat_settings import template_file
from whet.recipe import Config
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Change, Input, Inputs, accept, changes, from_json, to_json
from whet.tasks.loading import ELSEWHERE, TASKS
from whet.train.session.resume import how_to_resume

Files = Mapping[str, Path]  # file name → path
Named = tuple[str, str, Mapping[str, Path | str]]  # key, its value, and its files (or source code of an object)
WEIGHTS_AT_START = "model.weights"  # a change of these is never accepted: training continues from them
OF_THE_SYSTEM = {".DS_Store", "__pycache__"}  # files that systems and Python create
CODE_OF_WHET = Path(whet.__file__).resolve().parent


def current_inputs(config: Config, run: Path) -> dict[str, Input]:
    """Input files that exist now; loaders report missing ones themselves."""
    known: dict[Path, str] = {}
    found: dict[str, Input] = {}
    for key, text, files in _named(config, run):
        one = Input(path=text, files={name: _checksum(path, key, known) for name, path in files.items()})
        if files and one not in found.values():  # the data of an offline run may be its task as well
            found[key] = one
    return found


def compare_inputs(
    config: Config,
    run: RunDirectory,
    world: World,
    *,
    accept_changes: bool,
    note: Callable[[str], None],
    overrides: Sequence[str] = (),
) -> None:
    """Refuses to resume a run with changed inputs, on every rank alike, unless accepted.

    `overrides`: those that the run is resumed with, for the command that the refusal names.
    """
    refusal = accepted = ""
    if world.is_writer:
        try:
            refusal, accepted = _compared(config, run, accept_changes=accept_changes, overrides=overrides)
        except (UserError, RunFailed) as error:
            refusal = str(error)
    pending = None if run.accepted_inputs is None else to_json(run.accepted_inputs)
    refusal, pending = world.gather((refusal, pending))[0]
    if refusal:
        raise UserError(refusal)
    run.accepted_inputs = None if pending is None else from_json(pending)
    if accepted:
        note(accepted)


def changed_inputs(config: Config, run: RunDirectory) -> list[Change]:
    """Inputs of a finished run that have changed since; missing ones are ignored."""
    began = run.inputs()
    now = {} if began is None else current_inputs(config, run.path)
    return [] if began is None else changes({key: one for key, one in began.known.items() if key in now}, now)


def _compared(config: Config, run: RunDirectory, *, accept_changes: bool, overrides: Sequence[str]) -> tuple[str, str]:
    """Why the run must not be resumed (else empty), and a note for the user if it is."""
    began, now = run.inputs(), current_inputs(config, run.path)
    if began is None:
        run.write_inputs(Inputs(known=now))
        is_new = not run.metrics() and not run.has_saved
        return "", "" if is_new else "inputs: not recorded when the run began, so changes of files go undetected"
    found = changes(began.known, now)
    if not found:
        if began.known.keys() != now.keys():
            run.write_inputs(Inputs(known=now, origin=began.origin, accepted=began.accepted))
        return "", ""
    changed = "; ".join(change.sentence for change in found)
    if any(change.key == WEIGHTS_AT_START for change in found):
        return f"{changed}: restore the weights that the run began with, or start a new run", ""
    if not accept_changes:
        way = how_to_resume(run.path, accept_changes=True, overrides=overrides)
        return f"{changed}: restore the original files, or accept the change: {way}", ""
    checkpoint = run.latest()
    accepted = accept(began, now, found, after_step=checkpoint.step if checkpoint else 0)
    if isinstance(config, CollectConfig):
        run.write_inputs(accepted)
    else:  # recorded once training continues: an input that fails to load was never used
        run.accepted_inputs = accepted
    return "", f"accepted: {changed}"


def _named(config: Config, run: Path) -> Iterator[Named]:
    yield "config.yaml", "of the run", _file(run / "config.yaml")
    if isinstance(config, OnlineConfig | ControlConfig):
        yield from _cells(config)
    if isinstance(config, Acting):
        named = config.environment
        if named.name.rpartition(":")[2].isidentifier():
            yield "environment.name", named.name, _code(named.name, "environment")
        return
    if isinstance(config, OfflineConfig):
        yield from _rows(config)
    yield from _tasks(config, run)
    if isinstance(config, TrainConfig):
        yield from _start(config)
    elif config.model.path:  # no other check compares the weights that rows are sampled from
        yield "model.path", config.model.path, _model(config.model.path)
    if isinstance(config, OnlineConfig | CollectConfig):
        for number, function in enumerate(config.reward.functions):
            yield f"reward.functions.{number}", function.use, _code(function.use, "reward function")
        if config.reward.model is not None:
            yield "reward.model.path", config.reward.model.path, _model(config.reward.model.path)


def _cells(config: OnlineConfig | ControlConfig) -> Iterator[Named]:
    for kind, cell in config.algorithm:
        use = cell.use if isinstance(cell, OwnCell) else cell
        if isinstance(use, str) and ":" in use:
            yield f"algorithm.{kind}", use, _code(use, f"algorithm.{kind}")


def _tasks(config: Training | CollectConfig, run: Path) -> Iterator[Named]:
    yield from _task("task", config.task, run)
    if isinstance(config, CollectConfig):
        return
    for name, task in config.evaluation_tasks.items():
        section = "data" if name in config.eval.data else "task"
        yield from _task(f"eval.{section}.{name}".rstrip("."), task, run)


def _task(key: str, task: TaskConfig, run: Path) -> Iterator[Named]:
    name, options = task.name, task.options
    for number, one in enumerate(task.mixed):
        yield from _task(f"{key}.tasks.{number}", one, run)
    if name == CORPUS:
        yield f"{key}.path", str(options.get("path", "")), _text(options)
    elif name in TASKS or name in ELSEWHERE:
        yield from _sets(key, options)
    else:
        yield f"{key}.name", name, _code(name, "task")
        for option, text in texts(options):
            yield f"{key}.{option}", text, _file_or_folder(text, run)


def _start(config: TrainConfig) -> Iterator[Named]:
    new, template = config.model.new, template_file(config.model.chat_template)
    if template is not None:
        yield "model.chat_template", config.model.chat_template, _file(template)
    if new is None:
        files = _model(config.model.path)
        weights = {name: path for name, path in files.items() if name.endswith(WEIGHTS)}
        settings = {name: path for name, path in files.items() if name not in {*weights, *MADE_BY_A_RUN}}
        yield "model.path", config.model.path, settings
        yield (
            WEIGHTS_AT_START,
            config.model.path,
            {
                name: path
                for name, path in weights.items()
                if name in (sealed_files(path.parent) or {})  # with a checksum
            },
        )
    elif new.tokenizer != "characters" and ":" not in new.tokenizer:
        yield "model.new.tokenizer", new.tokenizer, _by_name(read_files(Path(new.tokenizer)))


def _rows(config: OfflineConfig) -> Iterator[Named]:
    if config.data is not None:
        yield from _sets("data", config.data.model_dump())
        for name, data in config.evaluation_data.items():
            yield from _sets(f"eval.data.{name}".rstrip("."), data.model_dump())
    if ":" in config.objective.name:
        yield "objective.name", config.objective.name, _code(config.objective.name, "objective")
    if config.reference:
        yield "reference", config.reference, _model(config.reference)


def _sets(key: str, options: Mapping[str, Any]) -> Iterator[Named]:
    """The files of one path, or of several sets."""
    if options.get("path"):
        yield f"{key}.path", str(options["path"]), _data(options)
    for number, one in enumerate(options.get("sets") or ()):
        own = one if isinstance(one, Mapping) else {"path": one}
        yield f"{key}.sets.{number}", str(own.get("path")), _data(own)


def _data(options: Mapping[str, Any]) -> Files:
    with suppress(UserError, RunFailed):
        path, split, subset = (str(options.get(key, "")) for key in ("path", "split", "subset"))
        found = row_files(path, split=split or "train", subset=subset, limit=options.get("limit"))
        return _by_name([file for file in found if file.is_file()])
    return {}


def _text(options: Mapping[str, Any]) -> Files:
    """The files of a corpus, by their place in it: names may repeat in a folder."""
    with suppress(UserError, RunFailed):
        known = {key: options[key] for key in ("path", "column", "split", "subset", "limit") if key in options}
        found = source_files(CorpusSource(**known))
        return {f"{number}: {file.name}" if len(found) > 1 else file.name: file for number, file in enumerate(found)}
    return {}


def _model(text: str) -> Files:
    with suppress(UserError):
        return _by_name(read_files(resolve_model(text)))
    return {}


def _code(spec: str, what: str) -> Mapping[str, Path | str]:
    if is_object(spec):
        source = object_source(spec, what)
        return {} if source is None else {"source": source}
    file = source_file(spec)
    if file is None or file.resolve().is_relative_to(CODE_OF_WHET):
        return {}
    return _file(file)


def _file(path: Path) -> Files:
    return {path.name: path} if path.is_file() else {}


def _file_or_folder(text: str, run: Path) -> Files:
    """Files of an option of a user's task, if it is an existing file, or (with a / in it) an existing directory.

    Not a directory that contains the run itself, which changes all the time.
    """
    with suppress(OSError, ValueError):  # not a path: too long, or with a null byte
        path = Path(text).expanduser()
        if path.is_file():
            return _file(path)
        if "/" in text and path.is_dir() and not run.resolve().is_relative_to(path.resolve()):
            return {str(file.relative_to(path)): file for file in sorted(_inside(path, set()))}
    return {}


def _inside(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """All files below a directory; follows links, visits each directory once."""
    if folder.resolve() in seen:
        return
    seen.add(folder.resolve())
    for entry in folder.iterdir():
        if entry.name in OF_THE_SYSTEM:
            continue
        if entry.is_dir():
            yield from _inside(entry, seen)
        elif entry.is_file():
            yield entry


def _by_name(paths: list[Path]) -> Files:
    return {path.name: path for path in paths}


def _checksum(path: Path | str, key: str, known: dict[Path, str]) -> str:
    """SHA-256 of a file; for weights in a manifest, the checksum there, which loading verifies."""
    if isinstance(path, str):
        return hashlib.sha256(path.encode()).hexdigest()
    place = path.resolve()
    if place not in known:
        listed = (sealed_files(path.parent) if path.name.endswith(WEIGHTS) else None) or {}
        try:
            known[place] = listed[path.name].sha256 if path.name in listed else sha256(path)
        except OSError as error:
            raise UserError(f"{key}: cannot read {path}: {error.strerror or error}") from error
    return known[place]
