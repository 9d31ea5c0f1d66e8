"""The exact covariance of everything that members of a federation sent, from the keys that their noise was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp.auditing._signs import worst_signs
from lightdp.protocol.seat import Seat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pytest

    from lightdp.planning import Plan
    from lightdp.protocol.history import ClientHistory


@dataclass(eq=False)
class Made:
    """One upload: whose it is, its plan, and the sign of each key in it, with the peer that has the key, too."""

    name: str
    plan: Plan
    roster: bytes
    round: int
    closing: bool
    message: bytes
    keys: dict[bytes, tuple[str, int]]


class View:
    """All uploads that left, as the adversary has them.

    Nothing but the keys says which noise two uploads share: a key that two rosters used would be one noise.

    Attributes:
        made: the uploads, in order.
        names: the members of each roster, by its hash.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Made] = []
        self.names: dict[bytes, tuple[str, ...]] = {}
        real, view = Seat.upload, self

        def upload(
            seat: Seat,
            vector: Any,
            history: ClientHistory,
            number: int,
            *,
            closing: bool,
            bare: bool,
            given: bytes | None,
            threads: int | None,
        ) -> bytes:
            message = real(seat, vector, history, number, closing=closing, bare=bare, given=given, threads=threads)
            names, keys = view.names[seat._roster], dict[bytes, tuple[str, int]]()
            parts = [] if bare else [(number, history.neighbours, False)]
            parts += [] if history.repair is None else [(*history.repair, True)]
            for of, peers, undo in parts:
                bound = history.given.get(of) if undo else given
                for peer in peers:
                    for term in seat.pairwise(history, of, (peer,), given=bound, undo=undo):
                        assert term.key not in keys
                        keys[term.key] = names[peer], term.sign
            view.made.append(Made(names[seat._me], seat._plan, seat._roster, number, closing, message, keys))
            return message

        monkeypatch.setattr(Seat, "upload", upload)

    def exact(self, name: str, colluders: Collection[str] = (), seen: Callable[[Made], bool] = lambda _: True) -> float:
        """μ² of a member's data in all that was seen: the largest over signs of its changes (E2)."""
        rows = [made for made in self.made if made.name not in colluders and seen(made)]
        mine = [at for at, made in enumerate(rows) if made.name == name and not made.closing]
        if not mine:
            return 0.0
        secret = {key for made in rows for key, (peer, _) in made.keys.items() if peer not in colluders}
        column = {key: at for at, key in enumerate(sorted(secret))}
        matrix = np.zeros((len(rows), len(column)))
        for row, made in zip(matrix, rows, strict=True):
            for key, (_, sign) in made.keys.items():
                if key in column:
                    row[column[key]] = sign * made.plan.sigma_pairwise
        own = np.diag([made.plan.sigma_individual**2 for made in rows])
        precision = np.linalg.inv(own + matrix @ matrix.T)[np.ix_(mine, mine)]
        return float(worst_signs(precision)[0]) * rows[0].plan.sensitivity ** 2
