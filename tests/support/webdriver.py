"""A browser that tests control: headless Chromium through chromedriver, by the WebDriver protocol.

Unlike `browser.py` the browser runs in real time, so that pages with workers can be tested.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .browser import BROWSER

DRIVER = shutil.which("chromedriver")

_FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars""".split()

_START_SECONDS = 30
"""Longest time until chromedriver answers."""


class BrowserError(Exception):
    """Error that chromedriver reports."""


class Page:
    """A window of the browser. Made by `opened`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def send(self, method: str, path: str, **data: Any) -> Any:
        """Sends a command of the WebDriver protocol, and returns its value.

        Args:
            method: `GET`, `POST` or `DELETE`.
            path: the command, such as `/url`.
            data: its arguments.

        Raises:
            BrowserError: the driver reports an error.
        """
        body = json.dumps(data).encode() if method == "POST" else None
        request = urllib.request.Request(
            self._address + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(json.load(error)["value"]["message"]) from None

    def go(self, url: str) -> None:
        self.send("POST", "/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs the body of a function in the page, and returns its result. `arguments`: its `arguments`."""
        return self.send("POST", "/execute/sync", script=script, args=[*arguments])

    def wait(self, condition: str, seconds: float) -> float:
        """Waits until a JavaScript expression is true.

        Args:
            condition: the expression.
            seconds: longest time to wait.

        Returns:
            the time that it took, in seconds.

        Raises:
            AssertionError: the expression is still false. The message contains the text of the page.
        """
        start = time.perf_counter()
        while not self.run(f"return Boolean({condition})"):
            assert time.perf_counter() - start < seconds, self.run("return document.body.innerText")[:2000]
            time.sleep(0.05)
        return time.perf_counter() - start

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the page in pixels. Windows of Chromium cannot be as narrow as a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def set_dark(self, is_dark: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def command(self, name: str, **parameters: Any) -> Any:
        """Sends a command of Chromium's own protocol.

        Args:
            name: the command.
            parameters: its parameters.
        """
        return self.send("POST", "/goog/cdp/execute", cmd=name, params=parameters)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(b64decode(self.send("GET", "/screenshot")))

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Returns the entries of a log since the last call. `kind`: `browser` or `performance`."""
        return self.send("POST", "/se/log", type=kind)


@contextmanager
def opened(folder: Path) -> Generator[Page]:
    """Starts a browser, and ends it after the `with` block.

    Args:
        folder: folder for the profile.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    root = Page(f"http://127.0.0.1:{port}")
    try:
        _wait_for(root)
        options = {"binary": BROWSER, "args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        logs = {"browser": "ALL", "performance": "ALL"}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = root.send("POST", "/session", capabilities={"alwaysMatch": capabilities})["sessionId"]
        page = Page(f"http://127.0.0.1:{port}/session/{session}")
        try:
            yield page
        finally:
            page.send("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()


def _wait_for(root: Page) -> None:
    start = time.perf_counter()
    while True:
        try:
            root.send("GET", "/status")
            return
        except OSError:
            assert time.perf_counter() - start < _START_SECONDS, "chromedriver does not answer"
            time.sleep(0.1)
