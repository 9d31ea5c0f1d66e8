"""`lightdp ui` in a process of its own, and a real browser to look at it."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
WAIT_S = 60.0


class Served:
    """A running server: its folder, its address, its token and its link."""

    def __init__(self, process: subprocess.Popen[str], link: str, folder: Path) -> None:
        self.process, self.link, self.folder = process, link, folder
        found = re.fullmatch(r"(http://[^/]+)/.*token=(\S+)", link)
        assert found is not None
        self.base, self.token = found[1], found[2]
        self.port = int(self.base.rpartition(":")[2])
        self.bearer = {"authorization": f"Bearer {self.token}"}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_S)


@contextmanager
def serving(folder: Path, *options: str, port: int = 0, program: Sequence[str] = ("-m", "lightdp")) -> Iterator[Served]:
    """`lightdp ui FOLDER`, ended with the block; its token is kept beside the folder."""
    words = [sys.executable, *program, "ui", str(folder), "--port", str(port), "--no-browser", *options]
    environment = os.environ | {"XDG_STATE_HOME": str(folder.parent / "state"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    with process, process.stdout:
        try:
            ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
            assert ready, "the server has not said anything"
            line = process.stdout.readline()
            yield Served(process, re.search(r"http\S+", line)[0], folder)  # type: ignore[index]
        finally:
            process.kill()
            process.wait()


def eventually(holds: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """What `holds` returns once that is true."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's chromium; tests are skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """A page of a server, opened by its link; at the end no request has left the machine and no script has failed."""
    contexts, asked, wrong = [], list[str](), list[str]()

    def opened(served: Served, path: str = "/plan", **options: Any) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(1000 * WAIT_S)
        contexts.append(context)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
        page.goto(served.link)
        page.wait_for_selector("#answer[aria-busy=false]")
        if path != "/plan":
            page.goto(served.base + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert asked
    assert {url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))} == set()
    assert wrong == []
