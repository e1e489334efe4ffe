"""Renders chat templates, which come with models and are programs, in a child process with resource limits.

Limited are the template's length, its CPU time and memory (`template_worker`), and the length of its output. Errors say
whether the template is broken or refuses these messages.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.records import Message

# For models without roles: the contents of the messages, one per line.
PLAIN_TEMPLATE = r"{{ messages | map(attribute='content') | join('\n') }}"
LARGEST = 2**20  # characters of a template; the longest published ones have some 30,000
SECONDS = 2.0  # CPU time for one rendering; real templates take a thousandth of it
WAIT_SECONDS = 60.0  # wall-clock time for a reply
PIECE = 2**16  # bytes per read of a reply
WORKER = Path(__file__).with_name("template_worker.py")


class BrokenTemplate(UserError):
    """A template that no conversation can be rendered with."""


class MessagesRefused(UserError):
    """A template's `raise_exception`: it does not accept these messages."""


def render_template(
    source: Any, messages: Sequence[Message], variables: Mapping[str, Any], *, add_generation_prompt: bool, owner: str
) -> str:
    """The conversation rendered by a template; `owner` is the tokeniser's directory or name, for errors."""
    name = f"the chat template of {owner}" if owner else "the chat template"
    if source == PLAIN_TEMPLATE:  # our own, trusted
        return "\n".join(message.content for message in messages)
    if not isinstance(source, str):
        raise BrokenTemplate(f"{name} is not text: correct chat_template in tokenizer_config.json")
    if not source.strip():
        raise BrokenTemplate(f"{name} is empty: write it, or remove it and give prompts as plain text")
    if len(source) > LARGEST:
        raise BrokenTemplate(f"{name} has {len(source)} characters, more than {LARGEST}: shorten it")
    turns = [{"role": message.role, "content": message.content} for message in messages]
    values = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
    reply = _RENDERER.ask({"template": source, "seconds": SECONDS, "values": {**values, **variables}})
    if "text" in reply:
        return str(reply["text"])
    line = "" if reply["line"] is None else f"line {reply['line']}: "
    if "refused" in reply:
        roles = ", ".join(message.role for message in messages)
        raise MessagesRefused(f"{name} refuses the roles [{roles}]: {line}{reply['refused']}; change the messages")
    kind = BrokenTemplate if reply["fatal"] else UserError
    raise kind(f"{name}: {line}{reply['broken']}; correct the template, or give the prompt as plain text")


class _Renderer:
    """The child process, started when first needed and restarted after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            process = self._started()
            try:
                line = _spoken(process, json.dumps(question).encode() + b"\n")
            except TimeoutError:
                self._end(patience=0.0)
                problem = f"the process that renders it does not answer within {WAIT_SECONDS:g} s"
                return {"broken": problem, "line": None, "fatal": True}
            except BaseException:  # interrupted: a late reply must not answer the next request
                self._end()
                raise
            if line.endswith(b"\n"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            return {"broken": _why(self._end()), "line": None, "fatal": True}

    def forget(self) -> None:
        """After a fork, in the child: process and lock belong to the parent."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # nothing to wait for

    def close(self) -> None:
        """Ends the process, if this one started it."""
        if self._process is not None:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:  # died since the last request
            self._end()
        if self._process is None:
            # -P: imports from neither the current directory nor the worker's. A new session, so that Ctrl-C does not
            # reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        return self._process

    def _end(self, patience: float = 0.5) -> int:
        """The exit status; a process that still runs is killed."""
        process, self._process = self._process, None
        assert process is not None
        with process:  # closes its pipes and waits
            if process.stdout is not None and process.poll() is None:
                _wait_or_kill(process, patience)
        return process.returncode


def _spoken(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """The reply line, or the part of it that was written before the process died; TimeoutError after WAIT_SECONDS."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + WAIT_SECONDS
    there, back = process.stdin.fileno(), process.stdout.fileno()
    rest, line = memoryview(question), bytearray()
    try:
        while rest:
            _wait(there, select.POLLOUT, deadline)
            rest = rest[os.write(there, rest) :]
        while not line.endswith(b"\n"):
            _wait(back, select.POLLIN, deadline)
            piece = os.read(back, PIECE)
            if not piece:
                break
            line += piece
    except BrokenPipeError:
        return b""
    return bytes(line)


def _wait(pipe: int, what: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pipe, what)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _wait_or_kill(process: subprocess.Popen[bytes], patience: float) -> None:
    """Waits first: a process that the system has killed takes a moment until its status is known."""
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()


def _why(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"it takes more than {SECONDS:g} s of processor time"
    ended = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"the process that renders it {ended}"


_RENDERER = _Renderer()
atexit.register(_RENDERER.close)
os.register_at_fork(after_in_child=_RENDERER.forget)
