"""Starts a job with its tool, records it, and asks the tool about it later."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from shutil import which

from whet.errors import RunFailed, UserError
from whet.launch import launches, local
from whet.launch.job import Job
from whet.launch.kubernetes import KUBERNETES
from whet.launch.local import LOCAL
from whet.launch.modal_app import MODAL
from whet.launch.ray_job import RAY
from whet.launch.skypilot import SKYPILOT
from whet.launch.slurm import SLURM
from whet.launch.tool import STATE_SECONDS, Launch, Tool, called, without_colours

TOOLS = {tool.name: tool for tool in (LOCAL, SLURM, RAY, SKYPILOT, MODAL, KUBERNETES)}
KEPT = ("namespace", "address")  # settings that later commands of the tool need


def submit(job: Job, tool: Tool) -> Launch:
    """Writes the file of a job and gives it to the tool; the record names it from then on."""
    text = tool.render(job)  # refuses what the tool cannot do
    _require_free(job.name)
    if tool is not LOCAL and which(tool.program) is None:
        raise UserError(f"{tool.program} is not installed here: {tool.install}; --dry-run shows the file without it")
    file = launches.file_of(job.name, tool.ending)
    launches.write_file(file, text)
    launch = Launch(
        name=job.name,
        tool=tool.name,
        id="",
        recipe=job.recipe,
        run=job.run,
        started=datetime.now().isoformat(sep=" ", timespec="seconds"),
        file=str(file),
        log=tool.log(job),
        settings={key: job.settings[key] for key in KEPT if key in job.settings},
    )
    try:
        launch = replace(launch, id=_start(job, tool, launch))
    except (UserError, RunFailed):
        file.unlink(missing_ok=True)
        raise
    launches.save(launch)
    return launch


def _start(job: Job, tool: Tool, launch: Launch) -> str:
    if tool is LOCAL:
        return str(local.start(job, launch, Path(launch.file).with_suffix(local.STATUS)))
    return tool.identify(called(tool.submit(job, Path(launch.file)), tool.install), job)


def _require_free(name: str) -> None:
    """Two jobs of one name would write one run."""
    known = launches.find_any(name)
    if known is not None and not has_ended(known):
        raise UserError(
            f"a launch {name} exists, and is not known to have ended: end it with `whet launch stop {name}` (the same "
            "command then resumes its run), or choose another --name"
        )


def has_ended(launch: Launch) -> bool:
    """Whether this is known here, without asking a tool."""
    if launch.tool == LOCAL.name:
        return local.is_over(launch)
    return launch.stopped


def state(launch: Launch) -> str:
    """How a launch stands, as its tool says; `unknown: …` where it cannot be asked."""
    if launch.tool == LOCAL.name:
        return local.state(launch)
    if launch.stopped:
        return "stopped"
    tool = TOOLS[launch.tool]
    try:
        said = called(tool.state(launch), tool.install, seconds=STATE_SECONDS)
    except (UserError, RunFailed) as error:
        return f"unknown: {error}"
    return tool.read_state(said, launch)


def stop(launch: Launch) -> Launch:
    """Ends a launch by its tool's command; the run directory stays."""
    if launch.tool == LOCAL.name:
        local.stop(launch)
    else:
        tool = TOOLS[launch.tool]
        called(tool.stop(launch), tool.install)
    launch = replace(launch, stopped=True)
    launches.save(launch)
    return launch


def log_lines(launch: Launch, *, follow: bool) -> Iterator[str]:
    """The output of a launch, as its tool has it; with `follow` as it is written."""
    tool = TOOLS[launch.tool]
    if launch.log and not Path(launch.log).exists() and not follow:
        raise UserError(f"there is no log {launch.log} yet: the job has not begun, or the folder is on another machine")
    words = tool.logs(launch, follow=follow)
    if which(words[0]) is None:
        raise UserError(f"{words[0]} is not installed here: {tool.install}")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace"
    ) as reader:
        assert reader.stdout is not None
        try:
            for line in reader.stdout:
                yield without_colours(line.rstrip("\n"))
        finally:
            if reader.poll() is None:
                reader.terminate()
    if reader.returncode > 0:
        raise RunFailed(f"{' '.join(words[:3])} ended with exit code {reader.returncode}; its output is above")
