"""Options of `whet plan`."""

from __future__ import annotations

from typing import Annotated

import typer

GPUName = Annotated[
    str,
    typer.Option("--gpu", metavar="NAME|BYTES", help="h200, h100, a100-80, a100-40, l40s, a6000, 4090, or e.g. 24GiB."),
]
GPUs = Annotated[
    int,
    typer.Option(
        "--gpus", min=1, max=4096, help="GPUs of that kind, each with all weights, or with --simulate in all."
    ),
]
Price = Annotated[
    float | None, typer.Option("--price", min=0, help="Dollars an hour of one GPU.  [default: a typical one]")
]
Shape = Annotated[
    str | None, typer.Option("--shape", metavar="NAME", help="Shape of a well-known model, e.g. qwen3-8b.")
]
PromptTokens = Annotated[
    int | None, typer.Option("--prompt-tokens", min=1, help="Tokens of a prompt.  [default: measured]")
]
CompletionTokens = Annotated[
    int | None,
    typer.Option(
        "--completion-tokens", min=1, help="Tokens of a completion.  [default: rollout.max_tokens, or measured]"
    ),
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="Simulate synchronous and asynchronous steps on --gpus GPUs.")
]
TrainerGPUs = Annotated[
    int | None, typer.Option("--trainer-gpus", min=1, help="Of --gpus, for training.  [default: the best split]")
]
EngineGPUs = Annotated[
    int | None, typer.Option("--engine-gpus", min=1, max=64, help="GPUs of a rollout engine.  [default: 1]")
]
Staleness = Annotated[
    list[int] | None,
    typer.Option(
        "--staleness",
        metavar="S",
        min=1,
        max=64,
        help="Bounds of asynchronous runs.  [default: the recipe's own, 1, 2 and 4]",
    ),
]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="RUN|SPEC",
        help="Lengths of completions: those of a run, or lognormal:MEDIAN:SIGMA.  [default: as long as allowed]",
    ),
]
Network = Annotated[
    float | None,
    typer.Option("--network", metavar="GB/S", min=0.01, help="Between nodes, per GPU.  [default: of the kind of GPU]"),
]
NodeGPUs = Annotated[int | None, typer.Option("--node-gpus", min=1, max=1024, help="GPUs of a node.  [default: 8]")]
