"""The exceptions of lightdp. Each has a `code`, which crosses the wire where an exception cannot.

>>> from lightdp import errors
>>> reply = errors.to_text(errors.BudgetError("round 7 could exceed the budget"))
>>> reply
'lightdp/budget: round 7 could exceed the budget'
>>> errors.code_of(reply) == errors.BudgetError.code
True
"""

from __future__ import annotations

import re
from typing import ClassVar

_TEXT = re.compile(r"lightdp/([a-z-]+): ")


class LightDPError(Exception):
    """Base of everything that lightdp raises on purpose."""

    code: ClassVar[str] = "error"


class ArgumentError(LightDPError, ValueError):
    """An argument is wrong; nothing was computed, sent or written. The message names the argument and its value."""

    code = "argument"


class InfeasibleError(ArgumentError):
    """Each argument is fine alone, but no noise can give what they ask for together."""

    code = "infeasible"


class ProtocolError(LightDPError):
    """A message is well-formed but contradicts the protocol; it was refused and changed nothing."""

    code = "protocol"


class BudgetError(LightDPError):
    """The next round could exceed the privacy budget; nothing was spent."""

    code = "budget"


class WireError(LightDPError, ValueError):
    """Bytes from outside are malformed, corrupt, of another run or not to be trusted; nothing changed."""

    code = "wire"


class MissingExtraError(LightDPError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""

    code = "missing-extra"

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra: pip install 'lightdp-fl[{extra}]'")


def to_text(error: LightDPError) -> str:
    """`error` as one line for a peer: its code, then its message."""
    return f"lightdp/{error.code}: {error}"


def code_of(text: str | None) -> str | None:
    """The code in a line that `to_text` made; None for any other text."""
    match = _TEXT.match(text or "")
    return None if match is None else match[1]
