"""Members of a federation in one process, after rosters of some rounds each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp.federation import Federation, Member
from lightdp.protocol import File
from support.parties import RUN, planned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAMES = ("ann", "bob", "cem", "dan", "eve")


def played(folder: Path, rosters: Sequence[int], **changed: Any) -> list[Member]:
    """Five members after rosters of so many rounds each; ann comes too late in every second round."""
    plan = planned(stragglers=1, **changed)
    federation = Federation(plan, length=4, run=RUN)
    members = [Member.new(plan, length=4, run=RUN, name=name, store=File(folder / name)) for name in NAMES]
    for member in members:
        federation.enrol(member.enrol())
    for rounds in rosters:
        [number] = federation.form()
        server = federation.rosters[number].server
        for turn in range(rounds):
            for member in members:
                member.join(server.roster())
                upload = member.begin(server.announce(since=0)).upload(np.zeros(4))
                if member.name != "ann" or turn % 2 == 0:
                    federation.receive(upload)
            federation.close(number)
        federation.end(number)
    return members
