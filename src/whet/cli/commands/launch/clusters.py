"""`whet launch local`, `slurm`, `ray`: machines that share the folder of runs with this one."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from whet.cli import arguments
from whet.cli.commands.launch import options


def local(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    gpus: options.Gpus = 1,
    name: options.Name = None,
    runs: arguments.Runs = Path("runs"),
    restarts: options.Restarts = 3,
    env: options.Env = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on this machine in the background.

    The run goes on when the terminal is closed. Its output is in RUNS/NAME.log. After a failure, e.g. a process that
    was killed, it is started again and resumes from its newest checkpoint. Secrets are those of this shell.

    \b
    Examples:
      whet launch local grpo-sorting steps=200
      whet launch local grpo-sorting --gpus 2 --name first --restarts 5
      whet launch local grpo-sorting --dry-run
    """
    from whet.launch.job import Job, read_environment
    from whet.launch.local import LOCAL

    folder = runs.expanduser().absolute()
    job = Job(
        name=options.named(name, source),
        recipe=source if options.is_packaged(source) else str(Path(source).absolute()),
        overrides=tuple(arguments.with_runs(overrides, runs)),
        runs=str(folder),
        gpus=gpus,
        restarts=restarts,
        environment=read_environment(env or []),
    )
    options.launch(job, LOCAL, source, dry_run=dry_run, as_json=as_json)


def slurm(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    nodes: options.Nodes = 1,
    gpus: options.Gpus = 1,
    gpu: options.Gpu = None,
    cpus: int = typer.Option(None, "--cpus", min=1, help="CPU cores of each node.  [default: 4 for each GPU]"),
    time: options.Time = None,
    partition: str = typer.Option(None, "--partition", help="Partition of the cluster."),
    account: str = typer.Option(None, "--account", help="Account that pays."),
    sbatch: list[str] = typer.Option(
        None, "--sbatch", metavar="OPTION", help="Another line for sbatch, e.g. --sbatch=--mem=200G; may be repeated."
    ),
    name: options.Name = None,
    runs: arguments.Runs = Path("runs"),
    restarts: options.Restarts = 3,
    setup: options.Setup = None,
    env: options.Env = None,
    secret: options.Secret = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on a Slurm cluster (sbatch).

    Start it on a login node, in a folder that the nodes share. The job uses the Python environment of this command.
    Two minutes before the time limit the run saves a checkpoint; the job is then queued again.

    \b
    Examples:
      whet launch slurm grpo-sorting --gpus 4 --gpu a100-80 --time 12h --partition gpu
      whet launch slurm grpo-sorting --nodes 2 --gpus 8 --sbatch=--mem=0 --dry-run
      whet launch slurm sft model=DIR data=chats.jsonl --secret WANDB_API_KEY 'track=[wandb]'
    """
    from whet.launch.job import Job, read_environment, read_secrets
    from whet.launch.slurm import SLURM

    folder = runs.expanduser().absolute()
    cores = cpus or (4 * gpus if gpus else None)
    bin_directory = str(Path(sys.executable).parent)
    job = Job(
        name=options.named(name, source),
        recipe=source if options.is_packaged(source) else str(Path(source).absolute()),
        overrides=tuple(arguments.with_runs(overrides, runs)),
        runs=str(folder),
        nodes=nodes,
        gpus=gpus,
        gpu=options.kind_of(gpu),
        seconds=options.seconds_of(time),
        restarts=restarts,
        environment=read_environment(env or []),
        secrets=read_secrets(secret or [], is_stored=False),
        setup=tuple(setup or ()),
        settings=options.with_settings(partition=partition, account=account, cpus=cores, bin=bin_directory),
        directives=tuple(sbatch or ()),
    )
    options.launch(job, SLURM, source, dry_run=dry_run, as_json=as_json)


def ray(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    nodes: options.Nodes = 1,
    gpus: options.Gpus = 1,
    gpu: options.Gpu = None,
    address: str = typer.Option(
        None, "--address", metavar="URL", help="Dashboard of the cluster.  [default: $RAY_API_SERVER_ADDRESS]"
    ),
    name: options.Name = None,
    runs: str = typer.Option(..., "--runs", metavar="DIR", help="Folder of runs that all nodes of the cluster share."),
    restarts: options.Restarts = 3,
    setup: options.Setup = None,
    env: options.Env = None,
    secret: options.Secret = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on a Ray cluster (ray job submit).

    The folder of this command is copied to the cluster, whose Python must have whet. A driver takes the nodes, runs
    torchrun on each, and starts all again after a failure.

    \b
    Examples:
      whet launch ray grpo-sorting --runs /shared/runs --address http://HEAD:8265
      whet launch ray grpo-sorting --runs /shared/runs --nodes 2 --gpus 8 --gpu h100 --dry-run
    """
    from whet.launch.job import Job, read_environment, read_secrets, shipped
    from whet.launch.ray_job import RAY

    job = Job(
        name=options.named(name, source),
        recipe=shipped(source, packaged=options.is_packaged(source), root=Path.cwd()),
        overrides=tuple(overrides or ()),
        runs=options.absolute(runs),
        nodes=nodes,
        gpus=gpus,
        gpu=options.kind_of(gpu),
        restarts=restarts,
        environment=read_environment(env or []),
        secrets=read_secrets(secret or [], is_stored=False),
        setup=tuple(setup or ()),
        settings=options.with_settings(address=address),
    )
    options.launch(job, RAY, source, dry_run=dry_run, as_json=as_json)
