"""The exceptions of lightdp. Each has a `code`, which crosses the wire where an exception cannot.

Each class also says what to do about it (`remedy`), and lists the refusals of a node that need words of their own
(`refusals`); docs/reference/refusals.md is made from them.

>>> from lightdp import errors
>>> reply = errors.to_text(errors.BudgetError("round 7 could exceed the budget"))
>>> reply
'lightdp/budget: round 7 could exceed the budget'
>>> errors.code_of(reply) == errors.BudgetError.code
True
>>> errors.remedy_of(reply)
'Nothing: the budget does what it is for.'
"""

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
from lightdp.errors._text import code_of, page, refusal_of, remedy_of, to_text

__all__ = [
    "ArgumentError",
    "BudgetError",
    "InfeasibleError",
    "LightDPError",
    "MissingExtraError",
    "ProtocolError",
    "Refusal",
    "WireError",
    "code_of",
    "page",
    "refusal_of",
    "remedy_of",
    "to_text",
]

for _each in (ArgumentError, BudgetError, InfeasibleError, LightDPError, MissingExtraError, ProtocolError, WireError):
    _each.__module__ = __name__  # where users import them from, in tracebacks too
