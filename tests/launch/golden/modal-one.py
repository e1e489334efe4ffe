"""Written by `whet launch modal`. Started again, it resumes its run: modal run --detach FILE"""

import subprocess

import modal

COMMAND = [
    "whet",
    "train",
    "grpo-sorting",
    "steps=5",
    "--runs",
    "/runs",
    "--out",
    "/runs/demo",
    "--restartable",
]
SECRETS = []

app = modal.App("demo")
runs = modal.Volume.from_name("my-runs", create_if_missing=True)
image = modal.Image.from_registry("docker.io/me/whet:1").add_local_dir(
    ".", "/root/work", ignore=[".git", ".venv", "runs", "**/__pycache__"]
)


@app.function(
    image=image,
    gpu="L40S:1",
    volumes={"/runs": runs},
    secrets=SECRETS,
    timeout=86400,  # seconds; then the function is retried
    retries=modal.Retries(max_retries=3, initial_delay=10.0),
    max_containers=1,  # one process writes the run
)
def train():
    child = subprocess.Popen(COMMAND, cwd="/root/work")
    try:
        code = child.wait()
    except BaseException:  # the container is taken away: whet saves a checkpoint
        child.terminate()
        child.wait()
        raise
    finally:
        runs.commit()
    if code == 2:  # wrong input, which another attempt would refuse too
        print("whet: not retried, because the input is wrong")
    elif code:
        raise RuntimeError(f"whet train exited with code {code}")


@app.local_entrypoint()
def main():
    print("started", train.spawn().object_id)
