"""`whet launch skypilot`, `modal`, `k8s`: machines that share nothing with this one."""

from __future__ import annotations

from pathlib import Path

import typer

from whet.cli import arguments
from whet.cli.commands.launch import options


def skypilot(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    nodes: options.Nodes = 1,
    gpus: options.Gpus = 1,
    gpu: options.Gpu = None,
    name: options.Name = None,
    runs: str = typer.Option(
        ..., "--runs", metavar="VOLUME|BUCKET", help="A SkyPilot volume, or a bucket (s3://…, gs://…), for the runs."
    ),
    image: str = typer.Option(None, "--image", metavar="IMAGE", help="Container image with whet."),
    setup: options.Setup = None,
    restarts: options.Restarts = 3,
    env: options.Env = None,
    secret: options.Secret = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on a cloud by SkyPilot (sky launch).

    The folder of this command is copied to the cluster. The cluster is taken down ten minutes after the run.

    \b
    Examples:
      whet launch skypilot grpo-sorting --gpu h100 --runs s3://my-runs --image docker.io/me/whet
      whet launch skypilot grpo-sorting --gpu a100-80 --gpus 8 --nodes 2 --runs my-volume --setup 'pip install WHET'
      whet launch skypilot grpo-sorting --gpus 0 --runs my-volume --image IMAGE --dry-run
    """
    from whet.launch.job import Job, read_environment, read_secrets, shipped
    from whet.launch.skypilot import MOUNT, SKYPILOT

    options.require_whet(image, setup)
    job = Job(
        name=options.named(name, source),
        recipe=shipped(source, packaged=options.is_packaged(source), root=Path.cwd()),
        overrides=tuple(overrides or ()),
        runs=MOUNT,
        nodes=nodes,
        gpus=gpus,
        gpu=options.kind_of(gpu),
        restarts=restarts,
        environment=read_environment(env or []),
        secrets=read_secrets(secret or [], is_stored=False),
        setup=tuple(setup or ()),
        image=image,
        settings={"volume": runs},
    )
    options.launch(job, SKYPILOT, source, dry_run=dry_run, as_json=as_json)


def modal(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    nodes: options.Nodes = 1,
    gpus: options.Gpus = 1,
    gpu: options.Gpu = None,
    time: options.Time = None,
    name: options.Name = None,
    runs: str = typer.Option(
        "whet-runs", "--runs", metavar="VOLUME", help="Modal volume for the runs; made if absent."
    ),
    image: str = typer.Option(
        None, "--image", metavar="IMAGE", help="Container image.  [default: Modal's, with Python]"
    ),
    setup: options.Setup = None,
    restarts: options.Restarts = 3,
    env: options.Env = None,
    secret: options.StoredSecret = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on Modal (modal run --detach).

    The folder of this command is copied into the image. A function may run for a day; after that, and after a failure,
    it is started again and the run resumes.

    \b
    Examples:
      whet launch modal grpo-sorting --gpu h100 --image docker.io/me/whet
      whet launch modal grpo-sorting --gpu a100-80 --gpus 4 --setup 'pip install WHET' --secret WANDB_API_KEY
      whet launch modal grpo-sorting --gpus 0 --image IMAGE --dry-run
    """
    from whet.launch.job import Job, read_environment, read_secrets, shipped
    from whet.launch.modal_app import MODAL, MOUNT

    options.require_whet(image, setup)
    job = Job(
        name=options.named(name, source),
        recipe=shipped(source, packaged=options.is_packaged(source), root=Path.cwd()),
        overrides=tuple(overrides or ()),
        runs=MOUNT,
        nodes=nodes,
        gpus=gpus,
        gpu=options.kind_of(gpu),
        seconds=options.seconds_of(time),
        restarts=restarts,
        environment=read_environment(env or []),
        secrets=read_secrets(secret or [], is_stored=True),
        setup=tuple(setup or ()),
        image=image,
        settings={"volume": runs},
    )
    options.launch(job, MODAL, source, dry_run=dry_run, as_json=as_json)


def k8s(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    nodes: options.Nodes = 1,
    gpus: options.Gpus = 1,
    gpu: options.Gpu = None,
    cpus: int = typer.Option(None, "--cpus", min=1, help="CPU cores that each pod asks for."),
    time: options.Time = None,
    namespace: str = typer.Option(None, "--namespace", help="Namespace.  [default: that of kubectl's context]"),
    name: options.Name = None,
    runs: str = typer.Option(
        ..., "--runs", metavar="CLAIM", help="PersistentVolumeClaim for the runs, ReadWriteMany for several nodes."
    ),
    image: str = typer.Option(..., "--image", metavar="IMAGE", help="Container image with whet and bash."),
    setup: options.Setup = None,
    restarts: options.Restarts = 3,
    env: options.Env = None,
    secret: options.StoredSecret = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on Kubernetes (kubectl apply).

    A Job, indexed and with a headless Service for several nodes. A recipe of your own travels in a ConfigMap; the files
    that it names must be in the image or on the volume, which is /runs in the pods.

    \b
    Examples:
      whet launch k8s grpo-sorting --image docker.io/me/whet --runs whet-runs
      whet launch k8s grpo-sorting --image IMAGE --runs CLAIM --nodes 2 --gpus 8 --gpu h100 --dry-run
      whet launch k8s grpo-sorting --image IMAGE --runs CLAIM --secret HF_TOKEN=hugging-face
    """
    from whet.launch.job import Job, read_environment, read_secrets
    from whet.launch.kubernetes import KUBERNETES, MOUNT, recipe_path

    settings = options.with_settings(cpus=cpus, namespace=namespace, volume=runs)
    recipe = source
    if not options.is_packaged(source):
        settings["recipe_text"], recipe = options.recipe_text(source), recipe_path(source)
    job = Job(
        name=options.named(name, source),
        recipe=recipe,
        overrides=tuple(overrides or ()),
        runs=MOUNT,
        nodes=nodes,
        gpus=gpus,
        gpu=options.kind_of(gpu),
        seconds=options.seconds_of(time),
        restarts=restarts,
        environment=read_environment(env or []),
        secrets=read_secrets(secret or [], is_stored=True),
        setup=tuple(setup or ()),
        image=image,
        settings=settings,
    )
    options.launch(job, KUBERNETES, source, dry_run=dry_run, as_json=as_json)
