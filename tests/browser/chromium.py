"""A headless chromium, driven over the two pipes of its DevTools protocol: no package but Python's own."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import tempfile
import time
from typing import Any

PATIENCE = 30.0  # seconds until an answer, or a condition, is given up
REFUSED = "status of 422"  # an answer that says what is wrong: the page shows it
KEYS = {"Enter": "\r", "Escape": "", "Tab": "\t"}


class Chromium:
    """One browser process; pages are its tabs."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        program = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        arguments = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--hide-scrollbars",
        ]
        arguments += [
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            f"--user-data-dir={self._profile}",
        ]
        # It reads descriptor 3 and writes descriptor 4.
        moves = [(os.POSIX_SPAWN_DUP2, orders, 13), (os.POSIX_SPAWN_DUP2, answers, 14)]
        moves += [
            (os.POSIX_SPAWN_DUP2, 13, 3),
            (os.POSIX_SPAWN_DUP2, 14, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._process = os.posix_spawn(program, arguments, os.environ, file_actions=moves)
        os.close(orders)
        os.close(answers)
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Sends an order and waits for its answer; events on the way are kept."""
        self._number += 1
        number = self._number
        order = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            message = self._read(until - time.monotonic())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
            if message:
                self.events.append(message)
        raise TimeoutError(method)

    def page(self, *, width: int = 1280, height: int = 900) -> Page:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, width, height)

    def close(self) -> None:
        self.send("Browser.close")
        os.waitpid(self._process, 0)
        os.close(self._orders)
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self, seconds: float) -> dict[str, Any]:
        """The next message, empty if none came in time."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, seconds))
            if not ready:
                return {}
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError("chromium has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))


class Page:
    def __init__(self, browser: Chromium, session: str, width: int, height: int) -> None:
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Opens an address from nothing, so that an address that only differs after # is loaded too."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.wait(
            "document.readyState === 'complete' && document.getElementById('main')"
            " && !document.getElementById('main').hasAttribute('aria-busy')"
        )

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(
                found["exceptionDetails"].get("exception", {}).get("description", found["exceptionDetails"]["text"])
            )
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.run(f"Boolean({condition})"):
                return
            time.sleep(0.05)
        raise TimeoutError(f"{condition}\n{self.text()[:2000]}")

    def text(self, selector: str = "body") -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, times: int = 1) -> None:
        """A key as a keyboard sends it."""
        text = {"text": KEYS.get(key, key)} if len(key) == 1 or KEYS.get(key) else {}
        codes = {
            "Enter": 13,
            "Escape": 27,
            "Tab": 9,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Home": 36,
            "End": 35,
        }
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        for _ in range(times):
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def scheme(self, name: str) -> None:
        """Which colours the system prefers: light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def shot(self) -> bytes:
        """What is to be seen, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self.send("Page.close")

    def forget(self) -> None:
        """Leaves out the troubles so far."""
        time.sleep(0.3)  # they are told after what they forbid
        self.run("0")
        self._browser.events.clear()

    def troubles(self) -> list[str]:
        """Errors of scripts and refusals of the content security policy so far."""
        found = []
        for event in self._browser.events:
            about = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                found.append(str(details.get("exception", {}).get("description", details["text"])))
            entry = about["entry"] if event["method"] == "Log.entryAdded" else {"level": ""}
            if entry["level"] == "error" and REFUSED not in entry["text"]:
                found.append(f"{entry['text']} {entry.get('url', '')}")
        return found

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]
