"""`lightdp audit run.jsonl` and `lightdp audit --client FILE.state`: what recorded runs and nodes have spent."""

from __future__ import annotations

from pathlib import Path

from lightdp.auditing._finding import Finding


def recorded(path: Path) -> Finding:
    """Every client's μ and ε recomputed from a run's log, and whether the log's claims hold."""
    raise NotImplementedError(path)


def node(path: Path) -> Finding:
    """What the node whose state lies in a file has spent."""
    raise NotImplementedError(path)
