"""Argument checks whose messages name the argument and its value, and privacy numbers in print."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection


def number(name: str, value: object) -> float:
    """`value` as a finite float."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ArgumentError(f"{name} must be a number, got {name}={value!r}")
    result = float(value)
    if not math.isfinite(result):
        raise ArgumentError(f"{name} must be finite, got {name}={result}")
    return result


def positive(name: str, value: object) -> float:
    """`value` as a finite float > 0."""
    result = number(name, value)
    if result <= 0:
        raise ArgumentError(f"{name} must be > 0, got {name}={result:g}")
    return result


def non_negative(name: str, value: object) -> float:
    """`value` as a finite float >= 0."""
    result = number(name, value)
    if result < 0:
        raise ArgumentError(f"{name} must be >= 0, got {name}={result:g}")
    return result


def probability(name: str, value: object) -> float:
    """`value` as a float in the open interval (0, 1)."""
    result = number(name, value)
    if not 0 < result < 1:
        raise ArgumentError(f"{name} must be in (0, 1), got {name}={result:g}")
    return result


def share(name: str, value: object) -> float:
    """`value` as a float in the closed interval [0, 1]."""
    result = number(name, value)
    if not 0 <= result <= 1:
        raise ArgumentError(f"{name} must be in [0, 1], got {name}={result:g}")
    return result


def integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int in [low, high]."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be an integer, got {name}={value!r}")
    result = operator.index(value)
    if result < low or (high is not None and result > high):
        wanted = f">= {low}" if high is None else f"in {low}..{high}"
        raise ArgumentError(f"{name} must be {wanted}, got {name}={result}")
    return result


def choice(name: str, value: str, options: Collection[str]) -> str:
    """`value` if it is one of `options`."""
    if value not in options:
        raise ArgumentError(f"{name} must be one of {', '.join(options)}, got {name}={value!r}")
    return value


def octets(name: str, value: object, size: int) -> bytes:
    """`value` as exactly `size` bytes; its content is never quoted, since it may be secret."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ArgumentError(f"{name} must be bytes, got {name} of type {type(value).__name__}")
    result = bytes(value)
    if len(result) != size:
        raise ArgumentError(f"{name} must be {size} bytes, got {len(result)}")
    return result


def rounded_up(value: float, digits: int = 4) -> str:
    """A privacy number with so many decimals, rounded up; what is above by rounding error only is not lifted."""
    scale = 10**digits
    return f"{math.ceil(value * scale * (1 - 1e-12)) / scale:.{digits}f}"
