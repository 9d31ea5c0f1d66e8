"""Exceptions as text: lines for a peer, what such a line means, and the reference page of all of them."""

from __future__ import annotations

import re

from lightdp.errors._classes import (
    ArgumentError,
    BudgetError,
    InfeasibleError,
    LightDPError,
    MissingExtraError,
    WireError,
)
from lightdp.errors._protocol import ProtocolError
from lightdp.errors._refusal import Refusal

_TEXT = re.compile(r"lightdp/([a-z-]+): ")
_CLASSES: tuple[type[LightDPError], ...] = (
    ProtocolError, BudgetError, ArgumentError, InfeasibleError, WireError, LightDPError, MissingExtraError,
)  # fmt: skip
_PAGE = """# Refusals: why, and what to do

A node that refuses a message answers with an error whose reason reads `lightdp/<code>: message`. Nothing has left it, \
and the app was not called. The server logs the reason and goes on without the node; the node's own log has it too, \
with the paths that the server is not told. In the command line the same messages follow `error:`.

Look for the words of the message in the table of its code. What stands before a table holds for all other messages \
with this code.

This page is made by `python -m lightdp.errors > docs/reference/refusals.md`.
"""


def to_text(error: LightDPError) -> str:
    """`error` as one line for a peer: its code, then its message."""
    return f"lightdp/{error.code}: {error}"


def code_of(text: str | None) -> str | None:
    """The code in a line that `to_text` made; None for any other text."""
    match = _TEXT.match(text or "")
    return None if match is None else match[1]


def refusal_of(text: str) -> Refusal | None:
    """What a line of `to_text` means, if it is one of the listed refusals; None for any other text."""
    kind = _kind(text)
    return None if kind is None else next((each for each in kind.refusals if each.matches(text)), None)


def remedy_of(text: str) -> str | None:
    """What to do about a line of `to_text`; None for any other text.

    >>> remedy_of("lightdp/protocol: the plan must not change in a run")
    'Start a new run for another plan.'
    """
    found = refusal_of(text) or _kind(text)
    return None if found is None else found.remedy


def page() -> str:
    """The reference page of all codes and refusals, in Markdown.

    >>> print(page().splitlines()[0])
    # Refusals: why, and what to do
    """
    parts = [_PAGE]
    for kind in _CLASSES:
        meaning = (kind.__doc__ or "").partition("\n")[0]
        parts.append(f"\n## `lightdp/{kind.code}`\n`{kind.__name__}`: {meaning} {kind.remedy}\n")
        if kind.refusals:
            parts.append("\n| the message says | why | what to do |\n| --- | --- | --- |\n")
        parts += [f"| `{says}` | {why} | {remedy} |\n" for says, why, remedy in kind.refusals]
    return "".join(parts)


def _kind(text: str) -> type[LightDPError] | None:
    return next((kind for kind in _CLASSES if kind.code == code_of(text)), None)
