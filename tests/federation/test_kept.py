"""What a state file says to its operator is what the client or member itself counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np
import pytest

from lightdp import gaussian
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Kept
from lightdp.protocol import Client, File
from lightdp.protocol.host import Host
from support.members import played
from support.parties import RUN, joined, planned

if TYPE_CHECKING:
    from pathlib import Path


def test_a_client_is_read_as_it_counts_itself(tmp_path: Path) -> None:
    server, clients = joined(planned(), 4, folder=tmp_path)
    for came in ([0, 1, 2, 3, 4], [1, 2, 3, 4], [0, 1], [0, 1, 2, 3]):
        start = server.announce(since=0)
        for i, client in enumerate(clients):
            message = client.begin(start).upload(np.zeros(4))
            if i in came:
                server.receive(message)
        server.close()
    kept, client = Kept.read(tmp_path / "client-00.json"), clients[0]
    assert (kept.name, kept.run, kept.length, kept.before) == ("client-00", RUN.hex(), 4, None)
    assert kept.plan.digest() == client.plan.digest()
    assert (kept.epsilon, kept.worst_epsilon) == (client.epsilon(), client.epsilon(worst=True))
    assert (kept.mu, kept.worst_mu) == (client.mu(), client.mu(worst=True))
    [rounds] = kept.rosters
    assert vars(rounds) == {
        "roster": 0, "clients": 5, "answered": 4, "used": 1, "late": 1, "void": 1, "open": 1, "closing": 0,
    }  # fmt: skip


@pytest.mark.parametrize("changed", [{}, {"calibration": "exact"}, {"grace": 1}])
def test_a_member_is_read_with_all_its_rosters(tmp_path: Path, changed: dict[str, Any]) -> None:
    ann = played(tmp_path, [2, 3, 1], **changed)[0]
    kept = Kept.read(tmp_path / "ann")
    assert [(each.roster, each.clients, each.answered) for each in kept.rosters] == [(0, 5, 2), (1, 5, 3), (2, 5, 1)]
    assert (kept.answered, kept.ended, kept.serial) == (6, 0, ann.serial)
    assert (kept.epsilon, kept.worst_epsilon) == (ann.epsilon(), ann.epsilon(worst=True))
    assert (kept.mu, kept.worst_mu, kept.square) == (ann.mu(), ann.mu(worst=True), ann.mu(worst=True) ** 2)
    assert 0 < kept.epsilon <= kept.plan.budget


def test_rosters_that_are_answered_no_more_stay_counted(tmp_path: Path) -> None:
    bob = played(tmp_path, [1] * 6, rounds=60)[1]
    kept = Kept.read(tmp_path / "bob")
    assert len(kept.rosters) < 6
    assert kept.answered == 6
    assert kept.ended == 6 - len(kept.rosters)
    assert kept.worst_mu == bob.mu(worst=True)


def test_a_member_without_a_roster_has_spent_nothing(tmp_path: Path) -> None:
    played(tmp_path, [])
    kept = Kept.read(tmp_path / "eve")
    assert (kept.rosters, kept.answered, kept.epsilon, kept.worst_mu, kept.left_epsilon) == ((), 0, 0.0, 0.0, 8.0)


def delta_of(epsilon: Any, mu: Any) -> Any:
    """(E5) in mpmath."""
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_what_is_left_is_what_may_still_be_spent_and_no_more(tmp_path: Path) -> None:
    played(tmp_path, [3])
    kept = Kept.read(tmp_path / "bob")
    together = mpmath.sqrt(mpmath.mpf(kept.left_mu) ** 2 + mpmath.mpf(kept.worst_mu) ** 2)
    assert 1e-5 * 0.9999 < delta_of(8, together) <= 1e-5
    assert delta_of(kept.left_epsilon * (1 - 1e-6), kept.left_mu) == pytest.approx(1e-5, rel=1e-3)
    with_total = mpmath.sqrt(mpmath.mpf(kept.left_of(16.0, 1e-6)) ** 2 + kept.square)
    assert 1e-6 * 0.9999 < delta_of(16, with_total) <= 1e-6


def test_of_a_spent_budget_or_total_nothing_is_left(tmp_path: Path) -> None:
    played(tmp_path, [3])
    kept = Kept.read(tmp_path / "bob")
    assert kept.left_of(kept.worst_epsilon * 0.9, 1e-5) == 0.0


def test_sampled_batches_count_in_a_total_as_whole_ones(tmp_path: Path) -> None:
    plan = planned(unit="record", sampling_rate=0.1, calibration="exact")
    server, clients = joined(plan, 4, folder=tmp_path)
    start = server.announce()
    clients[0].begin(start).upload(np.zeros(4))
    kept = Kept.read(tmp_path / "client-00.json")
    assert (kept.epsilon, kept.worst_epsilon) == (clients[0].epsilon(), clients[0].epsilon(worst=True))
    assert kept.square == clients[0].mu(worst=True) ** 2 > 2 * kept.worst_mu**2
    assert kept.left_epsilon == plan.budget - kept.worst_epsilon
    assert 0 < kept.left_mu < kept.plan.budget


def test_the_record_of_a_flower_node_brings_earlier_runs(tmp_path: Path) -> None:
    played(tmp_path, [1])
    record = {"serial": 9, "client": (tmp_path / "bob").read_text(), "before": 0.49, "kinds": [["client", "replace"]]}
    path = tmp_path / "node.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(record | {"run": RUN.hex(), "plan": "{}", "length": 4}))
    kept, plain = Kept.read(path), Kept.read(tmp_path / "bob")
    assert (kept.before, kept.kinds) == (0.49, (("client", "replace"),))
    assert kept.worst_mu == plain.worst_mu
    assert kept.left_of(16.0, 1e-5) ** 2 == pytest.approx(plain.left_of(16.0, 1e-5) ** 2 - 0.49)


def test_the_file_of_a_real_flower_node_is_read(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from support.flower_talk import Talk  # noqa: PLC0415  needs flwr

    talk, path = Talk(), tmp_path / "node.state"
    talk.grid.nodes[0].config["lightdp-state"] = str(path)
    talk.enrol()
    talk.mean()
    talk.mean()
    kept = Kept.read(path)
    assert kept.plan.digest() == talk.plan.digest()
    assert (kept.answered, kept.before, kept.kinds) == (2, 0.0, (("client", "add-remove"),))
    assert 0 < kept.worst_epsilon <= talk.plan.budget


def test_what_a_total_leaves_is_what_a_flower_node_still_accepts(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from support.flower_talk import Talk, a_plan  # noqa: PLC0415  needs flwr

    talk, path = Talk(), tmp_path / "node.state"
    total = {"lightdp-total-epsilon": 12.0, "lightdp-total-delta": 1e-5}
    talk.grid.nodes[0].config |= {"lightdp-state": str(path)} | total
    talk.enrol()
    talk.mean()
    kept = Kept.read(path)
    left = mpmath.findroot(lambda epsilon: delta_of(epsilon, kept.left_of(12.0, 1e-5)) - mpmath.mpf("1e-5"), 8)
    for share, fits in ((1.001, False), (0.999, True)):
        reply = talk.key(0, run=b"another 16 bytes", plan=a_plan(epsilon=float(left) * share).to_json())
        assert reply.has_content() is fits


def test_nothing_is_changed_and_a_state_of_another_machine_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(tmp_path, [1])
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: cls("another", None)))
    assert not Kept.read(tmp_path / "ann").host.same(Host.here())
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"member": 1}', b'{"member": 9}', b'{"client": "{}", "before": 0.0}', b"\xff", b"1",
     b'{"client": "\\ud800"}', b'{"client": "[1]"}'],
)  # fmt: skip
def test_what_is_no_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").touch(mode=0o600)
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"path must hold a client's state, got path='.*x'"):
        Kept.read(tmp_path / "x")


def test_a_record_with_a_wrong_sum_is_refused_without_its_key(tmp_path: Path) -> None:
    played(tmp_path, [1])
    state = json.loads((tmp_path / "bob").read_text().splitlines()[0])
    (tmp_path / "bob.serial").unlink()
    for name, value in (("length", "x"), ("enrolment", "00"), ("pair", "zz"), ("rosters", {"0": "{}"})):
        (tmp_path / "bob").write_text(json.dumps(state | {name: value}))
        with pytest.raises(ArgumentError, match="must hold") as caught:
            Kept.read(tmp_path / "bob")
        assert state["pair"] not in str(caught.value)


def test_an_older_copy_is_noticed_by_the_anchor(tmp_path: Path) -> None:
    path, anchor = tmp_path / "s", tmp_path / "anchor"
    Client.new(planned(), length=4, run=RUN, name="ann", store=File(path, anchor=anchor)).enrol()
    old = path.read_bytes()
    Client.restore(planned(), length=4, store=File(path, anchor=anchor)).enrol()
    path.write_bytes(old)
    (tmp_path / "s.serial").unlink()
    assert Kept.read(path).serial == 1
    with pytest.raises(ProtocolError, match="an older copy"):
        Kept.read(path, anchor=anchor)


def test_subtracting_epsilons_leaves_less_than_is_left() -> None:
    """What docs/how-to/membership.md says of a state that is gone."""
    for delta in (1e-3, 1e-5, 1e-9):
        for total in (0.5, 2.0, 8.0, 32.0):
            for share in (0.01, 0.1, 0.5, 0.9, 0.99):
                spent = share * total
                left = gaussian.mu(total, delta) ** 2 - gaussian.mu(spent, delta, up=True) ** 2
                assert gaussian.epsilon(left**0.5, delta) > total - spent
