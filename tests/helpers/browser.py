"""Headless Chromium over its debugging pipe: open a page, ask it things, take its picture."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One tab. `errors` collects console errors and failed requests."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        command = (
            f'exec "$0" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --mute-audio '
            f'--remote-debugging-pipe --user-data-dir="$1" 3<&{theirs_in} 4>&{theirs_out}'
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, str(profile)],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._count, self._session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _next(self, patience: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            got = os.read(self._read, 1 << 20) if ready else b""
            if not got:
                raise TimeoutError("Chromium does not answer")
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(found["exceptionDetails"]["text"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.errors.append(str(found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.errors.append(found["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = found["request"]["url"]
            if not url.startswith("data:"):
                self.requests.append(url)

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.load("Page.navigate", url=url)

    def load(self, method: str, **parameters: Any) -> None:
        """Ask for something that loads a page, and wait until it is there."""
        self._loaded = False
        self.ask(method, **parameters)
        while not self._loaded:
            self._note(self._next())

    def until(self, expression: str, patience: float = 60.0, said: str = "''") -> None:
        """Wait until it is true, however busy the machine; `said` tells what the page says."""
        end = time.monotonic() + patience
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression} {self.evaluate(said)}"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path
