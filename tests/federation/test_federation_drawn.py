"""Rosters of one federation whose masks are drawn or Gaussian, as their sizes make it worth (B2), (C1)."""

from __future__ import annotations

import numpy as np
import pytest

import lightdp
from lightdp import gaussian
from lightdp.federation import Federation, Member
from lightdp.stream import Draw, Term
from support.parties import RUN, Tape, begun

LENGTH = 40


def plays(federation: Federation, members: dict[str, Member], tapes: list[Tape]) -> set[type]:
    """A roster with a straggler, repaired in a closing round; which kinds of masks it had, and that none is left."""
    [number] = federation.form(force=True)
    table = federation.rosters[number]
    tapes.clear()
    for turn, closing in enumerate((False, False, True)):
        start = table.server.announce(since=0, closing=closing)
        for name in table.names[1:] if turn == 0 else table.names:
            members[name].join(table.server.roster(name))
            federation.receive(begun(members[name], start).upload(None if closing else np.zeros(LENGTH)))
        federation.close(number, closing=closing)
    federation.end(number)
    assert not np.sum([tape.fine[0] - tape.data[0] for tape in tapes], axis=0, dtype=np.int32).any()
    return {type(term) for tape in tapes for term in tape.terms[0]}


def test_a_roster_of_another_size_may_have_another_kind_of_masks(tapes: list[Tape]) -> None:
    plan = lightdp.plan(
        clients=50,
        colluders=10,
        stragglers=10,
        rounds=150,
        epsilon=3,
        delta=1e-5,
        unit="client",
        calibration="repair",
    )
    assert (plan.masks.kind, plan.among(24).masks.kind) == ("drawn", "gaussian")
    federation = Federation(plan, length=LENGTH, run=RUN, least=20)
    members = {f"member-{i:02}": Member.new(plan, length=LENGTH, run=RUN, name=f"member-{i:02}") for i in range(50)}
    for member in members.values():
        federation.enrol(member.enrol())
    assert plays(federation, members, tapes) == {Draw}
    before = members["member-30"].epsilon()
    for name in [*members][24:]:
        federation.leave(name)
    assert plays(federation, members, tapes) == {Term}
    for name in [*members][24:]:
        federation.enrol(members[name].enrol())
    assert plays(federation, members, tapes) == {Draw}
    assert members["member-01"].epsilon() > members["member-30"].epsilon() > before > 0
    counted = federation.epsilon()
    for name, mu in federation.mu().items():  # no roster's masks are counted for another one
        assert counted[name] == pytest.approx(gaussian.epsilon(mu, plan.delta), rel=1e-9)
    assert federation.max_epsilon() == max(counted.values())
