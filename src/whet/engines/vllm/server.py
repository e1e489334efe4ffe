"""Training against a running `vllm serve`: completions over HTTP, weights through a file, verified at every sync.

The server must be started as START says: its development endpoints call our worker extension, and its log-probs are
those of the sampling distribution.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import torch
from anyio.from_thread import start_blocking_portal
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from whet.engines.engine_protocol import OnGroup, within_context
from whet.engines.http.http_engine import USUAL, HttpEngine
from whet.engines.http.transport import Connection, RequestRefused, Transport
from whet.engines.http.untrusted import printable
from whet.engines.vllm.weight_proof import TOLERANCE, canary_prompts, hand_over
from whet.engines.vllm.weights import served_decoder
from whet.errors import RunFailed, UserError
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.storage.safetensors_files import FILE_MODE
from whet.records import Completion, Prompt, Sampling

START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs "
    "--worker-extension-cls whet.engines.vllm.worker_extension.Worker"
)
DIRECTORY_MODE = 0o755  # the server may be another user
SAME = "install the same version of whet where the server runs"
CONTROL_BYTES = 1 << 26  # largest control reply: names and checksums of half a million tensors


Word = Annotated[str, AfterValidator(printable)]


class Described(BaseModel, strict=True):
    """A server's description of its model."""

    dtype: Word
    context: Annotated[int, Field(ge=1)]
    logprobs_mode: Word
    architecture: Word
    quantization: Word


class VllmServerEngine:
    """Samples from a vLLM server and sends it new weights."""

    is_exact = False  # vLLM's kernels round differently

    def __init__(
        self,
        url: str,
        policy: CausalLM,
        tokenizer: Tokenizer,
        *,
        connection: Connection = USUAL,
        weights_directory: Path | None = None,
    ) -> None:
        """`weights_directory`: a directory that both processes can read; by default a temporary one."""
        self._control = Transport(url, replace(connection, retries=0))
        described = self._describe()
        check_served(described, policy, url)
        self.version = -1
        self.dtype: torch.dtype = DTYPES[described.dtype]
        self.context = min(policy.context, described.context)
        self._canaries = canary_prompts(min(policy.vocab_size, tokenizer.vocab_size), self.context)
        no_model = {"model": None}  # the server serves only one
        self._http = HttpEngine(url, "", tokenizer, connection=connection, logprobs="processed", extra=no_model)
        self._http.vocabulary = policy.vocab_size
        self._directory = make_directory(weights_directory)

    def sync(self, policy: CausalLM, *, version: int) -> None:
        """Samples with these weights from now on; RunFailed if verification fails."""
        hand_over(self, policy, self.dtype, self._canaries)
        self.version = version

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        return self.sample(within_context(prompts, self.context), sampling, count, on_group)

    def close(self) -> None:
        """Removes the directory of weights."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def take(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Writes the weights to a file and makes the server load it."""
        path = self._directory / "policy.safetensors"
        try:
            save_file({name: tensor.cpu().contiguous() for name, tensor in weights}, path)
            path.chmod(FILE_MODE)
        except (OSError, SafetensorError) as error:
            raise RunFailed(f"{path}: the weights for the server cannot be written ({error})") from error
        problems = self._call("whet_read", str(path))[0]
        path.unlink(missing_ok=True)
        if not isinstance(problems, list):
            raise self._strange("whet_read", "a list of problems")
        if problems:
            raise UserError(
                f"{self._control.url} cannot read {path} ({self._control.safe(str(problems[0]))}): "
                "set engine.weights_directory to a directory that the server can read too"
            )

    def checksums(self) -> dict[str, str]:
        """Checksums of the server's weights."""
        found = self._call("whet_checksums")[0]
        if not isinstance(found, dict) or not all(isinstance(checksum, str) for checksum in found.values()):
            raise self._strange("whet_checksums", "the checksum of each tensor")
        return {name: printable(checksum) for name, checksum in found.items()}

    def forget(self) -> None:
        """Drops the prefix cache, which was computed with other weights."""
        reply = self._post("/reset_prefix_cache", {})
        if reply.get("success") is not True:
            raise RunFailed(f"{self._control.url} kept its prefix cache of older weights: is it in use by others?")

    def sample(
        self, prompts: Sequence[Prompt], sampling: Sampling, count: int, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        """`count` completions of each prompt; prompts must fit the context."""
        return self._http.generate(prompts, sampling, count=count, on_group=on_group)

    def _describe(self) -> Described:
        try:
            replies = self._call("whet_describe")
        except RequestRefused as error:
            if error.status != 404:
                raise
            raise UserError(f"{self._control.url} takes no weights: start it with {START}") from error
        except RunFailed as error:
            if "no attribute" in str(error):
                raise UserError(f"{self._control.url} has no worker of ours: start it with {START}") from error
            raise UserError(str(error)) from error
        if len(replies) != 1:
            raise UserError(f"{self._control.url} shares its model among {len(replies)} workers: serve it with one")
        try:
            return Described.model_validate(replies[0])
        except ValidationError as error:
            wrong = ".".join(map(str, error.errors()[0]["loc"])) or "the shape"
            raise UserError(f"{self._control.url} does not say what {wrong} of its model is: {SAME}") from error

    def _call(self, method: str, *arguments: str) -> list[Any]:
        """The return values of a method, one per worker of the server."""
        reply = self._post("/collective_rpc", {"method": method, "args": list(arguments)})
        results = reply.get("results")
        if not isinstance(results, list) or not results:
            raise self._strange(method, "the results of its workers")
        return results

    def _strange(self, method: str, expected: str) -> RunFailed:
        return RunFailed(f"{self._control.url} did not answer {method} with {expected}: {SAME}")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with start_blocking_portal() as portal:
            return portal.call(partial(self._control.post, path, body, most_bytes=CONTROL_BYTES))


DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCE}


def check_served(described: Described, policy: CausalLM, url: str) -> None:
    """Refuses a server whose model cannot take the policy's weights, or whose log-probs are not the sampler's."""
    expected = served_decoder(policy).family.architecture
    if described.architecture != expected:
        raise UserError(f"{url} serves a {described.architecture}, but the policy is a {expected}: serve the same")
    if described.logprobs_mode != "processed_logprobs":
        raise UserError(
            f"{url} gives log-probs of another distribution than it samples from ({described.logprobs_mode}): "
            "start it with --logprobs-mode processed_logprobs"
        )
    if described.quantization or described.dtype not in DTYPES:
        kind = described.quantization or described.dtype
        raise UserError(f"{url} serves {kind} weights: start it with --dtype {' or '.join(DTYPES)}")


def make_directory(parent: Path | None) -> Path:
    """A new directory for weights."""
    try:
        directory = Path(mkdtemp(prefix="whet-weights-", dir=parent))
        directory.chmod(DIRECTORY_MODE)
    except OSError as error:
        raise UserError(f"engine.weights_directory {parent} cannot be written to: {error.strerror}") from error
    return directory
