"""`lightdp audit --claim`: what noise that others claim to be private really gives."""

from __future__ import annotations

from lightdp.auditing._finding import Finding


def claimed(text: str) -> Finding:
    """The true μ and ε of a claim, for example "clip=1 sensitivity=1e-4 epsilon=10 delta=1e-5 rounds=20"."""
    raise NotImplementedError(text)
