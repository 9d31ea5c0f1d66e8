"""The rounds that a member has answered, as the text that its key reply carries to the server."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from lightdp.errors import ProtocolError

_LONGEST = 2**16  # characters; a roster of 5000 rounds takes 1250


def to_text(answered: Mapping[int, Collection[int]]) -> str:
    """What `Member.answered` returned, as JSON: for each roster a hexadecimal number whose bits are rounds.

    >>> to_text({0: {0, 1, 4}, 3: ()})
    '{"0": "13", "3": "0"}'
    """
    return json.dumps({number: f"{sum(1 << each for each in set(rounds)):x}" for number, rounds in answered.items()})


def from_text(text: object) -> dict[int, frozenset[int]]:
    """What `to_text` was given, from a node that may write anything.

    >>> from_text('{"0": "13"}')
    {0: frozenset({0, 1, 4})}

    Raises:
        ProtocolError: it is something else.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ProtocolError(f"answered must be a text of at most {_LONGEST} characters")
    try:
        return {int(number): _rounds(rounds) for number, rounds in json.loads(text).items()}
    except (AttributeError, RecursionError, TypeError, ValueError):
        raise ProtocolError(f"answered must have rounds as bits for each roster, got {text[:80]!r}") from None


def _rounds(text: str) -> frozenset[int]:
    if text.strip("0123456789abcdef"):
        raise ValueError("a sign, a space or an underscore")  # which int() takes
    bits = bin(int(text, 16))[:1:-1]
    return frozenset(at for at, bit in enumerate(bits) if bit == "1")
