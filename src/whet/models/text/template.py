"""Chat templates, which come with models and are programs: rendered in a process that may not take all of the machine.

Bounded are the template itself, its processor time and its memory (`template_worker`), and the text that it
writes. What goes wrong is blamed on whoever did it: a template on itself, or on messages that it says it does not take.
"""

from __future__ import annotations

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

# A conversation for models that know no roles: the contents, one per line.
PLAIN_TEMPLATE = r"{{ messages | map(attribute='content') | join('\n') }}"
LARGEST = 2**20  # characters of a template; the longest that are published have some 30,000
SECONDS = 2.0  # of processor time for one rendering; real templates take a thousandth of it
WAIT_SECONDS = 60.0  # for an answer, whatever the processor does meanwhile
PIECE = 2**16  # bytes of an answer that are read at once
WORKER = Path(__file__).with_name("template_worker.py")


class BrokenTemplate(UserError):
    """A template that no conversation can be rendered with."""


def render_template(
    source: Any, messages: Sequence[Message], variables: Mapping[str, Any], *, add_generation_prompt: bool, owner: str
) -> str:
    """The conversation as a template writes it; `owner` is the directory or the name of the tokeniser."""
    name = f"the chat template of {owner}" if owner else "the chat template"
    if source == PLAIN_TEMPLATE:  # ours: nothing to guard against, and no process to start
        return "\n".join(message.content for message in messages)
    if not isinstance(source, str):
        raise BrokenTemplate(f"{name} is no text: correct chat_template in tokenizer_config.json")
    if not source.strip():
        raise BrokenTemplate(f"{name} is empty: write it, or remove it and give prompts as plain text")
    if len(source) > LARGEST:
        raise BrokenTemplate(f"{name} has {len(source)} characters, more than {LARGEST}: shorten it")
    turns = [{"role": message.role, "content": message.content} for message in messages]
    values = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
    told = _RENDERER.ask({"template": source, "seconds": SECONDS, "values": {**values, **variables}})
    if "text" in told:
        return str(told["text"])
    if "refused" in told:
        roles = ", ".join(message.role for message in messages)
        raise UserError(f"{name} refuses the roles [{roles}]: {told['refused']}; change the messages")
    line = "" if told["line"] is None else f"line {told['line']}: "
    kind = BrokenTemplate if told["fatal"] else UserError
    raise kind(f"{name}: {line}{told['broken']}; correct the template, or give the prompt as plain text")


class _Renderer:
    """The process, started when it is first needed and again after it was ended."""

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
                told = f"the process that renders it does not answer within {WAIT_SECONDS:g} s"
                return {"broken": told, "line": None, "fatal": True}
            except BaseException:  # interrupted: the answer to this question must not be taken for the next one's
                self._end()
                raise
            if line.endswith(b"\n"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            return {"broken": _why(self._end()), "line": None, "fatal": True}

    def forget(self) -> None:
        """In a fork: the process is the parent's, and so is whoever holds the lock."""
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
        if self._process is not None and self._process.poll() is not None:  # ended by somebody since the last question
            self._end()
        if self._process is None:
            # -P: neither the current directory nor the worker's own is a place to import from. In a session of its own
            # no Ctrl-C reaches it.
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
    """The line that it answers, or what there is of it when it ends; TimeoutError after WAIT_SECONDS."""
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
    """A process that was ended by the system needs a moment to be seen so."""
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
