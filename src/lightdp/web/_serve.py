"""The server: bound before it is announced, ended by Ctrl-C or with the process that started it."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lightdp._validate import integer
from lightdp.errors import ArgumentError
from lightdp.web._app import App
from lightdp.web._folder import Folder
from lightdp.web._guard import ENTER, Guard, token
from lightdp.web._plan import answer, others, settings

_ALL = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound to
_END_S = 5.0
_ASK_S = 10.0
_MOST_WAITING = 128  # connections without a request
_AT_ONCE = 256  # connections accepted at a time: with those that wait or ask, fewer than a process may have files


class _Connection(H11Protocol):
    """A connection that is closed unless a request comes soon; `Guard` limits requests, so idle ones stop none.

    Of too many that wait for their first request the oldest is closed: the process does not run out of file
    descriptors, and a client that asks at once is answered.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.began = self.loop.time()
        self.loop.call_later(_ASK_S, self._waited)
        waiting = [each for each in self.connections if isinstance(each, _Connection) and each.waits()]
        if len(waiting) > _MOST_WAITING:
            min(waiting, key=lambda each: each.began).transport.close()

    def waits(self) -> bool:
        """Whether no request has come yet."""
        asked: object = self.cycle  # of the first request once its head has come
        return asked is None and not self.transport.is_closing()

    def _waited(self) -> None:
        if self.waits():
            self.transport.close()


def token_file() -> Path:
    """Where the token is kept: `lightdp/ui.token` below `$XDG_STATE_HOME`, or `~/.local/state`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lightdp" / "ui.token"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    folder: Path, *, host: str = "127.0.0.1", port: int = 0, secret: Path | None = None, path: str = "/",
    announce: Callable[[str], None], until: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Serve the pages of a folder until Ctrl-C, or until `until` returns.

    Args:
        folder: whose logs are shown.
        host: address to bind.
        port: 0 takes any that is free.
        secret: file of the token; by default `token_file()`, or a token for this run where that cannot be kept.
        path: of the page to begin with.
        announce: is called with the link once requests are answered.
        until: blocks as long as the server is wanted.

    Raises:
        ArgumentError: the folder, the address or the file of the token is refused.
    """
    shown, key = Folder(folder), _token(secret)
    with _bound(host, integer("port", port, 0, 65535)) as listening:
        taken = listening.getsockname()[1]
        names = [host, *([socket.gethostname(), socket.getfqdn()] if host in _ALL else [])]
        app = App(shown, lambda: server.should_exit).routes()
        guarded = Guard(app, token=key, port=taken, hosts=names, any_address=host in _ALL)
        server = uvicorn.Server(
            uvicorn.Config(
                guarded,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=3,
                http=_Connection,
                backlog=_AT_ONCE,
            )
        )
        called = "127.0.0.1" if host in _ALL else f"[{host}]" if ":" in host else host
        link = f"http://{called}:{taken}{path}{'&' if '?' in path else '?'}token={key}"

        def waited() -> None:
            if until is not None:
                until()
                server.should_exit = True

        for each in (lambda: announce(link), waited, *(() if until is not None else (_warmed,))):
            threading.Thread(target=each, daemon=True).start()
        with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended
            server.run(sockets=[listening])


def _warmed() -> None:
    """Make the plan that a new page begins with, and one with sampled batches: the first answers are as quick then."""
    others(asked := settings([]))
    answer(asked)
    answer(asked | {"sampling_rate": 0.5, "rounds": 2})


def _token(secret: Path | None) -> str:
    if secret is not None:
        return token(secret)
    try:
        return token(token_file())
    except (ArgumentError, RuntimeError):  # no home, or one that is not ours to write
        return secrets.token_urlsafe(32)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ArgumentError(f"host must be an address of this machine, got host={host!r}: {error}") from None
    listening = socket.socket(kind, socket.SOCK_STREAM)
    try:
        alone = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)  # Windows would share the port otherwise
        listening.setsockopt(socket.SOL_SOCKET, alone, 1)
        try:
            listening.bind(place)
        except OSError as error:
            raise ArgumentError(
                f"port must be free, and host an address of this machine, got host={host!r} port={port}: "
                f"{error.strerror}; port 0 takes any that is free"
            ) from None
        listening.listen(128)  # a browser that is quicker than the server waits
        yield listening
    finally:
        listening.close()


def open_browser(link: str) -> None:
    """Open a link in the user's browser, if there is one with windows; nothing else happens otherwise.

    Guarantee: the link, which holds the token, is in no argument of a process, where other users could read it. The
    browser opens a private file that leads to it, which is removed when this process ends.
    """
    with suppress(webbrowser.Error, OSError):
        found = webbrowser.get()
        text = type(found) is webbrowser.GenericBrowser and "BROWSER" not in os.environ  # as lynx, in this terminal
        if not text:
            descriptor, name = tempfile.mkstemp(prefix="lightdp-", suffix=".html")  # with mode 0600
            atexit.register(Path(name).unlink, missing_ok=True)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
                file.write(ENTER.format(place=escape(link)))
            found.open(Path(name).as_uri())


@contextmanager
def beside(log: Path, *, browser: bool = True) -> Iterator[None]:
    """Serve the page of a log, in a process of its own, as long as the block lasts.

    Guarantee: if the server crashes, the block continues; the process has a lower priority, and ends with
    this one however it ends, since it reads from a pipe that only this one holds.

    Args:
        log: the file, there or not yet.
        browser: whether to open the page.
    """
    # -P: no module of the current folder is imported
    words = [sys.executable, "-P", "-m", "lightdp", "ui", str(log.parent), "--port", "0", "--beside", log.name]
    words += [] if browser else ["--no-browser"]
    process = None
    with suppress(OSError):
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=2, start_new_session=True)  # noqa: S603
    try:
        yield
    finally:
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def page_of(log: str) -> str:
    """The path of the live page of a log."""
    return f"/runs/view?run={quote(log, safe='')}"
