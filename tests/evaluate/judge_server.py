"""A chat server on a real socket that compares answers by a rule, and fails when it is told to."""

import json
import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = re.compile(r"\[Answer A\]\n(.*?)\n\n\[Answer B\]\n(.*?)\n\nWhich answer", re.DOTALL)


@dataclass
class JudgeServer:
    """`says` gives the reply to a pair of answers in their order; `failures` are refused first, with a 503."""

    says: Callable[[str, str], str]
    failures: int = 0
    url: str = ""
    requests: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def judging(says: Callable[[str, str], str], *, failures: int = 0, pattern: re.Pattern = ANSWERS):
    """Serves on a free port of this machine while the block runs."""
    served = JudgeServer(says=says, failures=failures)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with served.lock:
                served.requests.append(body)
                served.headers.append(dict(self.headers))
                is_down, served.failures = served.failures > 0, max(0, served.failures - 1)
            if is_down:
                self._send(503, {"error": {"message": "loading"}})
                return
            first, second = pattern.search(body["messages"][-1]["content"]).groups()
            choice = {"index": 0, "finish_reason": "stop", "message": {"content": served.says(first, second)}}
            self._send(200, {"choices": [choice], "usage": {"completion_tokens": 3}})

        def _send(self, status, value):
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format, *args):
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
