"""What the server's log says: equal reasons of many nodes once, who is waited for, and how late uploads were."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable

from lightdp._validate import counted
from lightdp.flower._settings import LOG

_OFTEN, _SELDOM = 5.0, 60.0  # seconds between lines: if something has changed, and if nothing has
_MORE = 1.05  # times what would just have been enough
_LONG = 300  # characters of what a node said


def said(text: object) -> str:
    r"""What a node said, as one line that it cannot make look like others: at most 300 printable characters.

    >>> said("no\nbudget")
    'no\\nbudget'

    Args:
        text: any; its `str` is taken.
    """
    whole = str(text)
    kept = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole[:_LONG])
    return kept if len(whole) <= _LONG and len(kept) <= _LONG else f"{kept[: _LONG - 4]} ..."


def told(reasons: Iterable[tuple[int, str]]) -> list[str]:
    """Each reason once, with how many nodes gave it or which one, the most frequent first.

    >>> told([(7, "no budget"), (8, "not available"), (9, "no budget")])
    ['2 nodes: no budget', 'node 8: not available']

    Args:
        reasons: nodes and what each of them said.
    """
    said = dict(reasons)
    return [
        f"{count} nodes: {reason}" if count > 1 else f"node {next(n for n, r in said.items() if r == reason)}: {reason}"
        for reason, count in Counter(said.values()).most_common()
    ]


class Waiting:
    """Says how many nodes have come: at once, when there are more or fewer, and now and then.

    Args:
        what: has come.
        wanted: how many are waited for.
    """

    def __init__(self, what: str, wanted: int) -> None:
        self._what, self._wanted = what, wanted
        self._said: tuple[float, int] | None = None

    def see(self, count: int) -> None:
        """Take in how many there are now."""
        now = time.monotonic()
        if count >= self._wanted:
            return
        if self._said is not None and now - self._said[0] < (_SELDOM if count == self._said[1] else _OFTEN):
            return
        LOG.info("lightdp: waiting for nodes: %d of %d %s", count, self._wanted, self._what)
        self._said = now, count


class Newcomers:
    """Clients that wait for a roster while others train: whether they have waited long enough, and a line about them.

    Args:
        size: so many form a roster at once.
        least: so many form one if they have waited.
        wait: seconds.
    """

    def __init__(self, size: int, least: int, wait: float) -> None:
        self._size, self._least, self._wait = size, least, wait
        self._since: float | None = None  # at least `least` of them wait
        self._said = 0

    def are_due(self, count: int) -> bool:
        """Whether at least `least` have waited for `wait` seconds; `count` is how many wait now."""
        if count < self._least:
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= self._wait

    def see(self, count: int) -> None:
        """Take in how many are still waiting; a line says so when there are more or fewer."""
        if count not in {0, self._said}:
            fewer = f"or {self._least} for {self._wait:g} s"
            if self._least == self._size:
                fewer = f"or after {self._wait:g} s the number that LightDP(..., least=) says"
            LOG.info("lightdp: %s in no roster yet: a new one takes %d, %s", _waiting(count), self._size, fewer)
        self._said = count


def _waiting(count: int) -> str:
    return f"{counted(count, 'client')} {'is' if count == 1 else 'are'}"


class Deadlines:
    """When rounds began and ended, and how long uploads took that came after that."""

    def __init__(self) -> None:
        self._began: dict[Hashable, float] = {}
        self._lasted: dict[Hashable, float] = {}
        self._late: list[tuple[float, float]] = []  # how long each one and its round took

    def begin(self, number: Hashable) -> None:
        """Start a round."""
        self._began[number] = time.time()

    def end(self, number: Hashable) -> None:
        """End a round: its deadline is now."""
        if number in self._began:
            self._lasted[number] = time.time() - self._began[number]

    def came(self, number: Hashable, sent: float) -> None:
        """Note an upload that came too late.

        Args:
            number: of its round.
            sent: when its node sent it, by the node's clock. It is taken to lie between the deadline and now, and to be
                the deadline if it is no time.
        """
        if number in self._lasted:
            lasted, now = self._lasted[number], time.time() - self._began[number]
            took = sent - self._began[number] if math.isfinite(sent) else lasted
            self._late.append((min(max(took, lasted), now), lasted))

    def advise(self) -> None:
        """Say how late uploads were since this was last called, and which timeout would have taken them."""
        if not self._late:
            return
        over = max(took - lasted for took, lasted in self._late)
        enough = max(took for took, _ in self._late)
        LOG.warning(
            "lightdp: uploads that came after the end of their round: %d, by up to %.1f s. They are in no sum and cost "
            "budget; timeout=%d would have taken them", len(self._late), over, math.ceil(enough * _MORE),
        )  # fmt: skip
        self._late.clear()
