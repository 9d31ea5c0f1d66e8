"""`lightdp ui`: the local pages, until Ctrl-C.

The link is on standard output, everything else on standard error. Ctrl-C is how the command ends, so it exits with 0.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_PORT = 8765
_OPEN = (
    "warning: others on the network can reach this page, and nothing is encrypted: anybody who has the link sees all "
    "logs of the folder. An SSH tunnel to 127.0.0.1 is safer."
)


def command(
    *,
    folder: Annotated[Path, typer.Argument(help="Where run logs lie, also in folders below.")] = Path(),
    port: Annotated[int, typer.Option(help="On which to listen; 0 takes any that is free.")] = _PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    token_file: Annotated[
        Path | None, typer.Option(help="Private file of the token, made if there is none; by default in your home.")
    ] = None,
    beside: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve, print the link, open it.

    Args:
        folder: of the logs.
        port: on which to listen.
        host: likewise.
        browser: whether to open the page.
        token_file: where the token is kept.
        beside: the log of a run whose command started this one: its page is opened, and the server ends when standard
            input does.
    """
    from lightdp import web  # noqa: PLC0415  an optional dependency

    if not web.is_loopback(host):
        typer.echo(_OPEN, err=True)

    def announce(link: str) -> None:
        typer.echo(f"live: {link}" if beside is not None else f"lightdp ui: {link}\nCtrl-C ends it.")
        sys.stdout.flush()
        if browser:
            web.open_browser(link)

    if beside is None:
        web.serve(folder, host=host, port=port, secret=token_file, announce=announce)
        return
    with suppress(OSError, AttributeError):
        os.nice(10)  # the training comes first
    web.serve(
        folder, host=host, port=port, secret=token_file, path=web.page_of(beside), announce=announce,
        until=lambda: (sys.stdin.buffer.read(), None)[1],
    )  # fmt: skip
