"""One reason for which a node refuses a message, and what to do about it."""

from __future__ import annotations

import re
from typing import NamedTuple


class Refusal(NamedTuple):
    """One reason for which a node refuses a message.

    Attributes:
        says: words of the message, with … for what differs from case to case.
        why: what they mean.
        remedy: what the operator of the node, or of the server, does.

    >>> late = Refusal("round … is over", "The message came after a later one.", "Nothing.")
    >>> late.matches("lightdp/protocol: round 7 is over"), late.matches("lightdp/protocol: it is over")
    (True, False)
    """

    says: str
    why: str
    remedy: str

    def matches(self, text: str) -> bool:
        """Whether a message has these words."""
        return re.search(".*".join(map(re.escape, self.says.split("…"))), text, re.DOTALL) is not None
