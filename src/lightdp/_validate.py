"""Argument checks whose messages name the argument and its value, and how privacy numbers are printed."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection

from lightdp.errors import ArgumentError


def number(name: str, value: object) -> float:
    """`value` as a finite float."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ArgumentError(f"{name} must be a number, got {name}={value!r}")
    try:
        result = float(value)
    except (OverflowError, TypeError, ValueError):  # an enormous integer, or an array
        raise ArgumentError(f"{name} must be a number that a float can hold, got {type(value).__name__}") from None
    if not math.isfinite(result):
        raise ArgumentError(f"{name} must be finite, got {name}={result}")
    return result


def positive(name: str, value: object) -> float:
    """`value` as a finite float > 0.

    >>> positive("clip", 0)
    Traceback (most recent call last):
    lightdp.errors.ArgumentError: clip must be > 0, got clip=0
    """
    return _if((result := number(name, value)) > 0, name, result, "> 0")


def non_negative(name: str, value: object) -> float:
    """`value` as a finite float >= 0."""
    return _if((result := number(name, value)) >= 0, name, result, ">= 0")


def probability(name: str, value: object) -> float:
    """`value` as a float in the open interval (0, 1)."""
    return _if(0 < (result := number(name, value)) < 1, name, result, "in (0, 1)")


def share(name: str, value: object) -> float:
    """`value` as a float in the closed interval [0, 1]."""
    return _if(0 <= (result := number(name, value)) <= 1, name, result, "in [0, 1]")


def integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int in [low, high]; without `high`, no upper limit."""
    if type(value) is not int and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise ArgumentError(f"{name} must be an integer, got {name}={value!r}")
    result = operator.index(value)
    if result < low or (high is not None and result > high):
        wanted = f">= {low}" if high is None else f"in {low}..{high}"
        raise ArgumentError(f"{name} must be {wanted}, got {name}={result}")
    return result


def choice(name: str, value: str, options: Collection[str]) -> str:
    """`value` if it is one of `options`."""
    if not isinstance(value, str) or value not in options:
        raise ArgumentError(f"{name} must be one of {', '.join(options)}, got {name}={value!r}")
    return value


def octets(name: str, value: object, size: int) -> bytes:
    """`value` as exactly `size` bytes; messages never quote its content, since it may be secret."""
    if type(value) is bytes and len(value) == size:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ArgumentError(f"{name} must be bytes, got {name} of type {type(value).__name__}")
    if len(result := bytes(value)) != size:
        raise ArgumentError(f"{name} must be {size} bytes, got {len(result)}")
    return result


def rounded_up(value: float, digits: int = 4) -> str:
    """A privacy number with `digits` decimals, rounded up; a relative excess below 1e-12 counts as rounding error.

    >>> rounded_up(2.00001), rounded_up(0.1 + 0.2, 1)
    ('2.0001', '0.3')
    """
    if value == math.inf:
        return "inf"
    scale = 10**digits
    return f"{math.ceil(value * scale * (1 - 1e-12)) / scale:.{digits}f}"


def counted(count: int, noun: str) -> str:
    """A number and what it counts, in the singular or the plural.

    >>> counted(1, "round"), counted(2000, "round")
    ('1 round', '2,000 rounds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rounded_down(value: float, digits: int = 4) -> str:
    """A lower end of a privacy number with `digits` decimals, rounded down.

    >>> rounded_down(0.89999), rounded_down(1.5, 1)
    ('0.8999', '1.5')
    """
    scale = 10**digits
    return f"{math.floor(value * scale * (1 + 1e-12)) / scale:.{digits}f}"


def _if(holds: bool, name: str, value: float, wanted: str) -> float:
    if not holds:
        raise ArgumentError(f"{name} must be {wanted}, got {name}={value:g}")
    return value
