"""Recorded arrivals: a CSV file that says whose upload of which round came when."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from lightdp.errors import ArgumentError

STATUSES = ("used", "next", "late", "lost")
"""What a trace may say of a client in a round: in time, one round late, too late but seen, never seen."""
_COLUMNS = ("round", "client", "status")


def read(path: Path, clients: int) -> dict[int, dict[int, str]]:
    r"""The status of each client that a trace mentions, by round, from 1, and client, from 0.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "trace.csv"
    >>> _ = path.write_text("round,client,status\n1,0,next\n3,2,lost\n")
    >>> read(path, clients=4)
    {1: {0: 'next'}, 3: {2: 'lost'}}

    Args:
        path: a file with columns round, client and status; others do not matter.
        clients: how many there are.

    Raises:
        ArgumentError: the file cannot be read, or a line is wrong or contradicts an earlier one.
    """
    rounds: dict[int, dict[int, str]] = {}
    for line, (*texts, status) in _rows(path):
        t, i = (int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1 for text in texts)
        if t < 1 or not 0 <= i < clients or status not in STATUSES:
            raise ArgumentError(
                f"line {line} of {path} must hold a round >= 1, a client in 0..{clients - 1} and "
                f"{', '.join(STATUSES[:-1])} or {STATUSES[-1]}, got {texts[0]!r}, {texts[1]!r} and {status!r}"
            )
        if rounds.setdefault(t, {}).setdefault(i, status) != status:
            raise ArgumentError(f"line {line} of {path} contradicts an earlier one on round {t} and client {i}")
    return rounds


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and the three columns of a trace."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            if not set(_COLUMNS) <= set(reader.fieldnames or ()):
                raise ArgumentError(
                    f"a trace must have columns {', '.join(_COLUMNS)}, got {reader.fieldnames} in {path}"
                )
            for row in reader:
                yield reader.line_num, [(row[name] or "").strip() for name in _COLUMNS]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"cannot read the trace {path}: {error}") from error
