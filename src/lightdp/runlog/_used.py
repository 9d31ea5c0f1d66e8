"""Whether there is a log already where a new one is to be written: nothing is overwritten unless that was asked for."""

from __future__ import annotations

from pathlib import Path

from lightdp._validate import counted
from lightdp.errors import ArgumentError
from lightdp.runlog._log import RunLog


def refuse_used(path: Path, checkpoint: Path, *, name: str = "path") -> None:
    """Refuse a place for the log of a new training where there is a log or a checkpoint already.

    >>> refuse_used(Path("a.jsonl"), Path("a.checkpoint"))
    >>> _ = Path("a.jsonl").write_text("my notes")
    >>> refuse_used(Path("a.jsonl"), Path("a.checkpoint"))
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: path must be new: it is no log; --overwrite starts anew, got path='a.jsonl'

    Args:
        path: of the log.
        checkpoint: of the training.
        name: what the user calls the place.

    Raises:
        ArgumentError: something is there; the message says what it is of, and how to go on.
    """
    if not path.exists() and not checkpoint.exists():
        return
    try:
        log = RunLog.read(path, torn=True)
    except ArgumentError:
        goes_on, what = checkpoint.exists(), "it is no log"
    else:
        goes_on = log.ended is None and checkpoint.exists()
        what = f"it has the {counted(len(log.rounds), 'round')} of a finished run"
        if log.ended is None:
            what = f"it has {counted(len(log.rounds), 'round')} of an interrupted run without a checkpoint"
        if log.ended is None and log.started.config.get("fidelity") == "protocol":
            what = "it is of an interrupted run with real noise, which cannot go on"
    if goes_on:
        what = "it is of an interrupted run; --resume goes on with that"
    raise ArgumentError(f"{name} must be new: {what}; --overwrite starts anew, got {name}={str(path)!r}")
