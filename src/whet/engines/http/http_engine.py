"""Completions from any OpenAI-compatible server (vLLM, llama.cpp, a hosted model).

For evaluation, sampling and LLM judges; not for training, because the weights are the server's. Two modes:

- with the model's tokeniser, requests and replies hold token ids (vLLM): tokens and log-probs are exact;
- without one, requests hold text or messages, and the server tokenises and templates them. Token ids stay unknown, and
  a server's default filters (llama.cpp: top-k 40) apply unless `extra` or the sampling overrides them.

Log-probs of vLLM (unless `--logprobs-mode processed_logprobs`), llama.cpp and OpenAI are those of the raw distribution.
`Completion` promises those of the sampling distribution, so they are used only where both are the same (temperature 1,
no filters) and are NaN otherwise.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from types import MappingProxyType
from typing import Any, Literal

from anyio.from_thread import start_blocking_portal

from whet.engines.engine_protocol import OnGroup, OnToken
from whet.engines.http.reply import Expected, is_plain, read_reply
from whet.engines.http.server_text import ServerText
from whet.engines.http.transport import Connection, Transport
from whet.errors import RunFailed, UserError
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Completion, Prompt, Sampling
from whet.streams import stream_key

Logprobs = Literal["none", "raw", "processed"]
USUAL = Connection()
NOTHING: Mapping[str, Any] = MappingProxyType({})
SEED_MASK = 2**31 - 1  # some servers keep a seed in 32 bits
# Largest reply, fixed and per token: several times what servers send (vLLM: about 150 bytes a token with log-probs).
ANSWER_BYTES, TOKEN_BYTES = 1 << 20, 1 << 10
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
UNSTATED_TOKENS = 1 << 17  # assumed limit if `extra` removes it from the request


class HttpEngine:
    """Samples from a server. Make prompts with `engine.tokenizer`: the given one, or `ServerText`."""

    is_exact = False  # a server's kernels round differently

    def __init__(
        self,
        url: str,
        model: str,
        tokenizer: Tokenizer | None = None,
        *,
        connection: Connection = USUAL,
        logprobs: Logprobs = "raw",
        choices: int = 1,
        extra: Mapping[str, Any] = NOTHING,
        on_token: OnToken | None = None,
    ) -> None:
        """`logprobs`: the kind that the server returns, or `none` to request none.

        `extra`: fields added to every request; None removes a field. `choices`: samples per request (`n`); more than
        one saves prefills, but only the first has its own seed. `on_token` is called when a completion has arrived.
        """
        if choices < 1:
            raise UserError(f"a request needs at least one choice, got choices={choices}")
        self.model, self.connection, self.extra, self.on_token = model, connection, extra, on_token
        self.tokenizer: Tokenizer = ServerText() if tokenizer is None else tokenizer
        self._exact = None if isinstance(self.tokenizer, ServerText) else self.tokenizer
        self.vocabulary = self.tokenizer.vocab_size  # upper bound of ids; a model may have more than its tokeniser
        self._logprobs, self._choices = logprobs, choices
        self._transport = Transport(url, connection)
        self.url = self._transport.url

    def sync(self, policy: CausalLM, *, version: int) -> None:  # noqa: ARG002 - as the protocol has it
        """Always refused: the server's weights cannot be changed."""
        raise UserError(
            f"the weights behind {self.url} are the server's own and cannot be trained: "
            "use this engine to evaluate, sample and judge, and engine.name=native to train"
        )

    def close(self) -> None:
        """Nothing to release: every request closes its own connection."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order, at most `connection.concurrency` requests at a time."""
        if any(not prompt.tokens for prompt in prompts):
            raise UserError("a prompt is empty: the model needs at least one token to continue")
        firsts = range(0, count, self._choices)
        jobs = [(index, first, min(self._choices, count - first)) for index in range(len(prompts)) for first in firsts]
        done: dict[tuple[int, int], list[Completion]] = {}
        limit = asyncio.Semaphore(self.connection.concurrency)
        with start_blocking_portal() as portal:  # an exception or Ctrl-C cancels all open requests
            waiting = {
                portal.start_task_soon(self._ask, prompts[i], sampling, first, choices, limit): (i, first)
                for i, first, choices in jobs
            }
            for future in as_completed(waiting):
                done[waiting[future]] = future.result()
                self._tell(*waiting[future], done[waiting[future]])
                prompt, _ = waiting[future]
                if on_group is not None and all((prompt, first) in done for first in firsts):
                    on_group(prompt, [completion for first in firsts for completion in done[prompt, first]])
        return [[completion for first in firsts for completion in done[i, first]] for i in range(len(prompts))]

    async def _ask(
        self, prompt: Prompt, sampling: Sampling, first: int, count: int, limit: asyncio.Semaphore
    ) -> list[Completion]:
        """Samples `first` … `first` + `count` − 1 of a prompt, from one request."""
        path, body = self._request(prompt, sampling)
        body |= {
            "seed": stream_key((*prompt.stream, first)) & SEED_MASK,
            "n": count if count > 1 else None,
            **self.extra,
        }
        given = {key: value for key, value in body.items() if value is not None}
        limits = [given[key] for key in TOKEN_LIMITS if isinstance(given.get(key), int)]
        most_tokens = max(limits, default=UNSTATED_TOKENS)
        most_bytes = ANSWER_BYTES + TOKEN_BYTES * count * most_tokens
        async with limit:
            reply = await self._transport.post(path, given, most_bytes=most_bytes)
        asked = Expected(
            count=count,
            most_tokens=most_tokens,
            sampling=sampling,
            tokenizer=self._exact,
            vocabulary=self.vocabulary,
            processed=self._logprobs == "processed",
        )
        try:
            return read_reply(reply, asked)
        except (RunFailed, UserError) as error:
            raise type(error)(f"{self.url} {self._transport.safe(str(error))}") from error

    def _request(self, prompt: Prompt, sampling: Sampling) -> tuple[str, dict[str, Any]]:
        """The endpoint, and the request fields that all samples of a prompt share."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens if prompt.limit is None else min(sampling.max_tokens, prompt.limit),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop": list(sampling.stop) or None,
        }
        if self._exact is not None:
            # Set even at their defaults: vLLM fills missing ones from the model's generation_config.json.
            body |= {"top_k": sampling.top_k, "min_p": sampling.min_p, "repetition_penalty": 1.0}
            # Two ways to get token ids: the first since vLLM 0.10.2, the second, older, as "token_id:N" in log-probs.
            body |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 1}
            # The tokeniser decides which ids end a completion, not the server's files.
            body |= {"stop_token_ids": sorted(self._exact.stops), "ignore_eos": True}
            return "completions", {**body, "prompt": list(prompt.tokens)}
        # Without their default values: hosted models refuse fields that they do not know.
        body |= {"top_k": sampling.top_k or None, "min_p": sampling.min_p or None}
        useful = sampling.temperature > 0 and (self._logprobs == "processed" or is_plain(sampling))
        has_logprobs = self._logprobs != "none" and useful
        content = ServerText().read(prompt.tokens)
        if isinstance(content, str):
            return "completions", {**body, "prompt": content, "logprobs": 1 if has_logprobs else None}
        messages = [{"role": message.role, "content": message.content} for message in content]
        return "chat/completions", {**body, "messages": messages, "logprobs": has_logprobs or None}

    def _tell(self, prompt: int, first: int, completions: Sequence[Completion]) -> None:
        if self.on_token is not None:
            for sample, completion in enumerate(completions, start=first):
                for token in completion.tokens:
                    self.on_token(prompt, sample, token)
