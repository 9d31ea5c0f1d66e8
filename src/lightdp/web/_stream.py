"""Runs as they go on: server-sent events that a reader takes up again where it stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from anyio import to_thread

from lightdp.errors import ArgumentError
from lightdp.report import colours
from lightdp.runlog import RunLog
from lightdp.schemes import schemes
from lightdp.web._folder import Folder
from lightdp.web._state import UNSOUND, figures, rows, sound, warnings

_TICK_S = 0.4
_KEEP_S = 15.0  # after so long without an event a comment keeps the connection


def news(folder: Folder, names: Sequence[str], marks: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What a reader at these marks does not have yet of each run, and its new marks.

    A reader whose mark is unknown, since the file is another one now, gets everything again, with `reset`.
    """
    found, reached, drawn = list[dict[str, Any]](), [], []
    for name, mark in zip(names, marks, strict=True):
        try:
            followed = folder.follow(name)
        except ArgumentError:  # not yet
            found.append({"reset": bool(mark), "rows": [], "figures": {"name": name, "status": "gone", "error": None}})
            reached.append("")
            continue
        followed.look()
        log, first, lines, new = followed.log, followed.after(mark), len(followed.lines), followed.mark
        state: dict[str, Any] = {"reset": bool(mark) and first == 0, "rows": []}
        if log is not None and first < lines:
            with suppress(*UNSOUND):  # figures say so
                state["rows"] = sound(rows(log, first))
        found.append(state | {"figures": figures(name, followed, model=folder.model(name) is not None)})
        reached.append(new)
        if log is not None and log.scheme in schemes():
            drawn.append((found[-1]["figures"], log))
    for (facts, _), (colour, dash) in zip(drawn, colours([log for _, log in drawn]), strict=True):
        facts |= {"colour": colour, "dash": " ".join(map(str, dash))}
    return found, reached


def logs_of(folder: Folder, names: Sequence[str]) -> list[RunLog]:
    """The logs of these names that have begun."""
    found = []
    for name in names:
        with suppress(ArgumentError):
            found.append(folder.follow(name).log)
    return [log for log in found if log is not None]


async def events(
    folder: Folder, names: Sequence[str], marks: Sequence[str], stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """Events of the runs until the reader goes or the server stops; the id of an event is the marks after it."""
    yield "retry: 1000\n\n"
    shown, quiet, first = "", 0.0, True
    while True:
        last = stopping()  # one more look after that, for the end of a run
        found, reached = await to_thread.run_sync(partial(news, folder, names, marks))
        facts = json.dumps([each["figures"] for each in found], allow_nan=False)
        if first or reached != list(marks) or facts != shown:
            notes = await to_thread.run_sync(lambda: warnings(logs_of(folder, names)))
            data = json.dumps({"runs": found, "warnings": notes}, allow_nan=False, separators=(",", ":"))
            yield f"id: {','.join(reached)}\ndata: {data}\n\n"
            marks, shown, quiet, first = reached, facts, 0.0, False
        elif quiet >= _KEEP_S:
            yield ": still here\n\n"
            quiet = 0.0
        if last:
            yield "event: stop\ndata: {}\n\n"
            return
        await asyncio.sleep(_TICK_S)
        quiet += _TICK_S
