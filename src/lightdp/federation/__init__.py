"""Trainings made of rosters: cohorts that take turns, members that come and go, servers that resume (C1).

    members                                          server
    Member.enrol() ------------------- ENROL ------> Federation.enrol(message)     at any time, once
                                                     Federation.form()
    Member.join(message) <------------ ROSTER ------ table.server.roster(name)     table = Federation.turn()
    Member.begin(message) <----------- ANNOUNCE ---- table.server.announce()
      .upload(update) ---------------- UPLOAD -----> Federation.receive(message)
                                                     Federation.close(table.number) -> Aggregate

The protocol of one roster is that of `lightdp.protocol`. Rosters share no noise, so what a member spends in several of
them adds up, and one ledger counts it.
"""

from lightdp.federation._cohorts import Cohort, Cohorts
from lightdp.federation._federation import Federation, Table
from lightdp.federation._kept import Kept, RosterRounds, unwrapped
from lightdp.federation._member import Member, MemberRound
from lightdp.federation._rounds import Rounds
from lightdp.federation._state import MemberState

__all__ = [
    "Cohort",
    "Cohorts",
    "Federation",
    "Kept",
    "Member",
    "MemberRound",
    "MemberState",
    "RosterRounds",
    "Rounds",
    "Table",
    "unwrapped",
]
