"""A round may be counted as answered before its update is made; then its own upload follows, once, or none does."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol import Client, File, Server

if TYPE_CHECKING:
    from pathlib import Path

RUN = b"a run of 16 byte"
ZEROS = np.zeros(4, np.float32)


@pytest.fixture
def parties(tmp_path: Path) -> tuple[Server, list[Client]]:
    plan = a_plan()
    server = Server(plan, length=4, run=RUN)
    clients = [
        Client.new(plan, length=4, run=RUN, name=name, store=File(tmp_path / name)) for name in ("ann", "bob", "cem")
    ]
    for client in clients:
        server.enrol(client.enrol())
    for client in clients:
        client.join(server.roster())
    return server, clients


def a_plan() -> lightdp.Plan:
    return lightdp.plan(
        clients=3, colluders=1, stragglers=1, rounds=6, epsilon=1e5, delta=1e-5, unit="client", calibration="repair"
    )


def test_a_claimed_round_is_charged_and_its_upload_is_as_any_other(parties: Any) -> None:
    server, clients = parties
    start = server.announce()
    for i, client in enumerate(clients):
        begun = client.begin(start)
        if i < 2:
            begun.claim()
            assert client.epsilon() > 0
            assert client.next_round == 1
        assert server.receive(begun.upload(np.full(4, 0.1)))
    assert server.close().mean() == pytest.approx(np.full(4, 0.1), abs=0.01)


def test_a_claimed_round_is_uploaded_once_and_not_by_a_copy(parties: Any) -> None:
    server, (ann, *_) = parties
    begun = ann.begin(server.announce())
    begun.claim()
    twin = copy.copy(begun)
    with pytest.raises(ArgumentError, match="update must be a numpy vector"):
        begun.upload(np.zeros(3))  # nothing left: it may still answer
    begun.upload(ZEROS)
    for again in (begun, twin):
        with pytest.raises(ProtocolError, match="round 0 was answered"):
            again.upload(ZEROS)
        with pytest.raises(ProtocolError, match="round 0 was answered"):
            again.claim()


def test_another_beginning_of_a_claimed_round_does_not_answer_it(parties: Any) -> None:
    server, (ann, *_) = parties
    start = server.announce()
    first, second = ann.begin(start), ann.begin(start)
    first.claim()
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        second.upload(ZEROS)
    first.upload(ZEROS)


def test_a_client_that_ends_after_a_claim_does_not_answer_the_round_and_goes_on(parties: Any, tmp_path: Path) -> None:
    server, (ann, bob, cem) = parties
    start = server.announce()
    ann.begin(start).claim()
    again = Client.restore(a_plan(), length=4, store=File(tmp_path / "ann"))
    assert again.epsilon() == ann.epsilon() > 0
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        again.begin(start)
    for client in (bob, cem):
        server.receive(client.begin(start).upload(ZEROS))
    server.close()
    assert server.receive(again.begin(server.announce()).upload(ZEROS))


def test_a_claim_ends_when_another_round_is_answered(parties: Any) -> None:
    server, (ann, bob, cem) = parties
    start = server.announce()
    begun = ann.begin(start)
    begun.claim()
    for client in (bob, cem):
        server.receive(client.begin(start).upload(ZEROS))
    server.close()
    ann.begin(server.announce()).upload(ZEROS)
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        begun.upload(ZEROS)


def test_a_claim_that_cannot_be_saved_changes_nothing(parties: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, (ann, *_) = parties
    begun = ann.begin(server.announce())

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(File, "append", full)
        with pytest.raises(OSError, match="no space"):
            begun.claim()
    assert ann.next_round == 0
    assert server.receive(begun.upload(ZEROS))
