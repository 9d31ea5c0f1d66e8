"""`lightdp report`: logs of runs as a page, a picture and a table in the terminal.

All logs are read and checked (`lightdp.runlog.RunLog`) before anything is drawn; one that is damaged is refused with
its file, line and reason. Interrupted runs are shown, and marked as such. After the table
come caveats: what keeps the runs from being compared, or one of them from being trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from lightdp.cli import table
from lightdp.cli.options import command_line
from lightdp.runlog import RunLog

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def command(
    *,
    runs: Annotated[list[Path], typer.Argument(help="Logs, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="Write FILE.html, .png or .svg.")] = Path("report.html"),
) -> None:
    """Read the logs, write the page, print the figures.

    Args:
        runs: the logs, in the order in which they are shown.
        out: the file; its suffix decides the format.
    """
    from lightdp.report import caveats, check_path, run_tables, save_runs  # noqa: PLC0415  an optional dependency

    check_path(out, "out")  # before the work
    found = [RunLog.read(path) for path in runs]
    with Console(stderr=True).status(f"drawing {escape(str(out))}"):
        save_runs(found, out, command_line())
    for each in run_tables(found):
        table.show(each)
    for sentence in caveats(found):
        typer.echo(sentence)
    typer.echo(f"wrote {out}")
