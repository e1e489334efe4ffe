"""An OpenAI-compatible server on a real socket that samples from a real model, and breaks when it is told to."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from whet.batching import collate
from whet.engines.native.native_engine import NativeEngine
from whet.models.logprobs import token_logprobs
from whet.records import Completion, Message, Prompt, Sampling

MODEL = "small"


@dataclass
class Served:
    """The server's model, its habits, the faults that wait for the next requests, and what it has seen."""

    engine: NativeEngine
    gives_ids: str = "field"  # "field": vLLM's token_ids; "spelled": among the log-probs; "": not at all
    gives_logprobs: str = "raw"  # "raw", "processed", or "" for none
    gives_usage: bool = True
    gives_stop_reason: bool = True
    key: str = ""
    fault: Callable[[Handler, int], bool] | None = None  # handler, number of the request → whether it was answered
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    busiest: int = 0  # most requests at a time
    abandoned: threading.Event = field(default_factory=threading.Event)  # a client left before its answer
    url: str = ""

    def __post_init__(self) -> None:
        self.lock, self.model_lock, self.busy = threading.Lock(), threading.Lock(), 0
        self.over = threading.Event()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        tokenizer = self.engine.tokenizer
        asked = body.get("prompt")
        if path.endswith("/chat/completions"):
            asked = tokenizer.prompt([Message(**message) for message in body["messages"]])
        elif isinstance(asked, str):
            asked = tokenizer.prompt(asked)
        sampling = Sampling(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            top_k=body.get("top_k", 0),
            min_p=body.get("min_p", 0.0),
            stop=tuple(body.get("stop", ())),
        )
        prompt = Prompt(tokens=tuple(asked), stream=(body["seed"],))
        with self.model_lock:
            completions = self.engine.generate([prompt], sampling, count=body.get("n", 1))[0]
            choices = [self._choice(i, prompt, c, sampling, path, body) for i, c in enumerate(completions)]
        reply: dict[str, Any] = {"object": "text_completion", "model": MODEL, "choices": choices}
        if self.gives_usage:
            reply["usage"] = {"completion_tokens": sum(len(c.tokens) for c in completions)}
        return reply

    def _choice(self, index, prompt, completion: Completion, sampling: Sampling, path, body) -> dict[str, Any]:
        ended = next((stop for stop in sampling.stop if completion.text.endswith(stop)), None)
        text = completion.text.removesuffix(ended) if ended else completion.text
        choice: dict[str, Any] = {"index": index, "finish_reason": completion.finish}
        if ended and self.gives_stop_reason:
            choice["stop_reason"] = ended
        chat = path.endswith("/chat/completions")
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if self.gives_ids == "field" and body.get("return_token_ids"):
            choice["token_ids"] = list(completion.tokens)
        if body.get("logprobs") and self.gives_logprobs:
            values = self.logprobs(prompt, completion, sampling)
            as_ids = self.gives_ids == "spelled" and body.get("return_tokens_as_token_ids")
            words = [f"token_id:{t}" if as_ids else self.engine.tokenizer.decode([t]) for t in completion.tokens]
            pairs = [{"token": word, "logprob": value} for word, value in zip(words, values, strict=True)]
            choice["logprobs"] = {"content": pairs} if chat else {"tokens": words, "token_logprobs": values}
        return choice

    @torch.no_grad()
    def logprobs(self, prompt: Prompt, completion: Completion, sampling: Sampling) -> list[float]:
        """By the training path: of the model as it is, or of the distribution after temperature and filters."""
        tokens, count = prompt.tokens + completion.tokens, len(completion.tokens)
        s = collate([tokens], [(False,) * len(prompt.tokens) + (True,) * count], torch.device("cpu"))
        if self.gives_logprobs == "processed" and sampling.temperature == 0:
            return list(completion.logprobs)  # the likeliest token is all that is left of the distribution
        under = sampling if self.gives_logprobs == "processed" else Sampling(max_tokens=1)
        return token_logprobs(self.engine.policy, s.tokens, s.lengths, s.mask, under)[0][s.mask].tolist()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: OpenAIServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        served = self.server.served
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with served.lock:
            number = len(served.requests)
            served.requests.append(body)
            served.paths.append(self.path)
            served.headers.append(dict(self.headers))
            served.busy += 1
            served.busiest = max(served.busiest, served.busy)
        self.answered = False
        try:
            self._respond(served, body, number)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Counts the request as done, before the client can know that it is."""
        with self.server.served.lock:
            self.server.served.busy -= not self.answered
            self.answered = True

    def _respond(self, served: Served, body: dict[str, Any], number: int) -> None:
        if served.key and self.headers.get("Authorization") != f"Bearer {served.key}":
            self.error(401, f"wrong key: {self.headers.get('Authorization')}")
        elif served.fault is not None and served.fault(self, number):
            return
        elif body.get("model", MODEL) != MODEL:  # vLLM takes none for its only one
            self.error(404, f"The model `{body['model']}` does not exist.")
        else:
            self.send(200, json.dumps(served.answer(self.path, body)).encode())

    def error(self, status: int, message: str, **headers: str) -> bool:
        """Answers with OpenAI's form of an error."""
        self.send(status, json.dumps({"error": {"message": message, "type": "test"}}).encode(), **headers)
        return True

    def send(self, status: int, content: bytes, *, length: int | None = None, **headers: str) -> bool:
        """Answers; a `length` that is not the content's makes the connection end in mid-body."""
        self._leave()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True
        return True

    def hang(self) -> bool:
        """Says nothing until the client leaves."""
        self.connection.settimeout(0.05)
        while not self.server.served.over.is_set():
            try:
                if not self.connection.recv(1):
                    self.server.served.abandoned.set()
                    break
            except TimeoutError:
                continue
        self.close_connection = True
        return True

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


class OpenAIServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    served: Served

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is not an error."""


@contextmanager
def serving(served: Served, *, certificate: tuple[Path, Path] | None = None) -> Iterator[Served]:
    """Serves on a free port of this machine while the block runs; `certificate` (and its key) makes it https."""
    server = OpenAIServer(("127.0.0.1", 0), Handler)
    server.served = served
    served.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}/v1"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
