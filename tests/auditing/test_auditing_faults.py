"""Faults that are planted in real clients, each found at 99 %; sound clients hold, at a confidence that never fails."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import masks
from lightdp.auditing import _live
from lightdp.keys import Keyring
from lightdp.protocol import Client, client, vector
from lightdp.protocol.history import ClientHistory
from lightdp.protocol.rounds import used_sets
from lightdp.protocol.seat import Seat

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.auditing import Audit
    from lightdp.planning import Plan

    Plant = Callable[[pytest.MonkeyPatch], None]

SURE = 1 - 1e-8  # sound audits fail once in 10^8


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 5, "colluders": 1, "stragglers": 1, "rounds": 8, "epsilon": 8.0, "delta": 1e-5}
    return lightdp.plan(**(asked | {"calibration": "repair", "unit": "client"} | changed))


def audited(grace: int = 0, **options: Any) -> Audit:
    return lightdp.audit(planned(grace=grace), **({"values": 100_000, "seed": 3} | options))


def named(found: Audit) -> set[str]:
    return {problem.partition(":")[0] for problem in found.problems}


def own_noise(times: float) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = masks._fine

        def weak(update: Any, grid: masks.Grid, *rest: Any, **more: Any) -> Any:
            return real(update, replace(grid, sigma_individual=grid.sigma_individual * times), *rest, **more)

        monkeypatch.setattr(masks, "_fine", weak)

    return plant


def weak_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Seat.upload

    def upload(self: Seat, vector: Any, history: Any, number: int, **more: Any) -> bytes:
        usual = self.grid
        if history.me == 0:
            self.grid = replace(usual, sigma_individual=0.9 * usual.sigma_individual)
        try:
            return real(self, vector, history, number, **more)
        finally:
            self.grid = usual

    monkeypatch.setattr(Seat, "upload", upload)


def pairwise_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Keyring.stream_keys

    def same(self: Keyring, peers: Any, *, round: int, chain: bytes) -> dict[int, bytes]:  # noqa: A002, ARG001
        return real(self, peers, round=0, chain=bytes(32))

    monkeypatch.setattr(Keyring, "stream_keys", same)


def repair_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Seat.pairwise

    def terms(self: Seat, *arguments: Any, undo: bool = False, **more: Any) -> Any:
        return [] if undo else real(self, *arguments, **more)

    monkeypatch.setattr(Seat, "pairwise", terms)


def repair_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is in what a client believes to owe: the audit must not ask the client's own code what is right."""
    real: Any = vars(ClientHistory)["repair"].fget

    def repeated(self: ClientHistory) -> Any:
        missed = [
            (number, tuple(j for j in self.neighbours if j not in used))
            for number, used in enumerate(used_sets(self.rounds))
            if self.me in used
        ]
        owed = [each for each in missed if each[1]]
        return real(self) or (owed[-1] if owed else None)

    monkeypatch.setattr(ClientHistory, "repair", property(repeated))


def clip_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "within_norm", lambda update, _: update)


def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    real = masks._fine
    keys = [bytes([k]) * 32 for k in range(3)]
    monkeypatch.setattr(masks, "_fine", lambda a, b, c, _, **more: real(a, b, c, keys, **more))


def seeded_by_client_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, fine, place = Client._answer, masks._fine, [b""]

    def answering(self: Client, begun: Any, *rest: Any) -> bytes:
        assert self._history is not None
        place[0] = f"{self._history.me} {begun.number}".encode()
        return answer(self, begun, *rest)

    def predictable(update: Any, grid: Any, terms: Any, own: Any, **more: Any) -> Any:
        keys = [hashlib.sha256(place[0] + bytes([k])).digest() for k in range(len(own))]
        return fine(update, grid, terms, keys, **more)

    monkeypatch.setattr(Client, "_answer", answering)
    monkeypatch.setattr(masks, "_fine", predictable)


def data_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    real = vector.clipped
    monkeypatch.setattr(client, "clipped", lambda *a, **more: np.multiply(real(*a, **more), 2))


FAULTS: dict[str, tuple[Plant, set[str]]] = {
    "own noise 10 % too small": (own_noise(0.9), {"own noise", "covariance method", "optimal linear test"}),
    "own noise 10 % too small, of client 0 alone": (weak_victim, {"own noise", "covariance method"}),
    "own noise 10 % too large": (own_noise(1.1), {"own noise"}),
    "pairwise noise reused": (pairwise_reused, {"uploads", "own noise"}),
    "repair missing": (repair_missing, {"uploads", "own noise", "model"}),
    "repair repeated": (repair_repeated, {"uploads", "own noise", "model"}),
    "clip ignored": (clip_ignored, {"clip"}),
    "data twice as large": (data_doubled, {"optimal linear test", "assumption-free bound"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, names = FAULTS[fault]
    plant(monkeypatch)
    found = audited(confidence=0.99)
    assert not found.holds
    assert names <= named(found)


def repaired_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under grace: what rode in the last upload, whose set is not known yet, rides in the next one too."""
    real: Any = vars(ClientHistory)["repair"].fget

    def twice(self: ClientHistory) -> Any:
        flying = [debt for riding in self.repairs.flying.values() for debt in riding]
        if real(self) is not None or not flying:
            return real(self)
        return flying[0].round, tuple(j for j in self.neighbours if j not in used_sets(self.rounds)[flying[0].round])

    monkeypatch.setattr(ClientHistory, "repair", property(twice))


GRACE_FAULTS: dict[str, tuple[Plant, set[str]]] = {
    "own noise 10 % too small": (own_noise(0.9), {"own noise", "covariance method"}),
    "repair missing": (repair_missing, {"uploads", "own noise", "model"}),
    "repair sent again before its fate is known": (repaired_in_flight, {"uploads", "model"}),
}


@pytest.mark.parametrize("fault", GRACE_FAULTS)
def test_a_planted_fault_is_found_and_named_under_grace(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, names = GRACE_FAULTS[fault]
    plant(monkeypatch)
    found = audited(grace=1, confidence=0.99, values=50_000)
    assert not found.holds
    assert names <= named(found)


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_twice_the_clip_is_found_where_noise_is_small(times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = vars(vector)["within_norm"]
    monkeypatch.setattr(vector, "within_norm", lambda update, clip: real(update, times * clip))
    found = lightdp.audit(planned(rounds=2, epsilon=1000.0), values=1000, play=1, confidence=SURE)
    assert found.clip is not None
    assert found.clip.norm[0] < times < found.clip.norm[1]
    assert ("clip" in named(found)) == (times > 1)


@pytest.mark.parametrize(
    ("plant", "names"), [(seeded, {"own noise", "fresh keys"}), (seeded_by_client_and_round, {"fresh keys"})]
)
def test_individual_noise_from_a_seed_is_found(plant: Plant, names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert names <= named(audited(confidence=0.99))


@pytest.mark.parametrize(("plant", "name"), [(clip_ignored, "clip"), (seeded_by_client_and_round, "fresh keys")])
def test_a_fault_that_one_check_alone_can_see_raises_no_other_alarm(
    plant: Plant, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert named(audited(confidence=SURE)) == {name}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"unit": "record"},
        {"colluders": 0, "stragglers": 0},
        {"calibration": "exact"},
        {"calibration": "local"},
        {"adjacency": "replace", "clip": 0.01},
        {"clients": 8, "degree": 4, "colluders": 2},
        {"grace": 1, "stragglers": 2},
        {"grace": 1, "calibration": "exact"},
        {"late": "unseen", "straggler_law": "pmf:0,1"},
    ],
)
def test_sound_clients_hold(changed: dict[str, Any]) -> None:
    found = lightdp.audit(planned(**changed), values=20_000, confidence=SURE)
    assert found.problems == ()


@pytest.mark.parametrize("lies", ["rotation", "search"])
@pytest.mark.parametrize("grace", [0, 1])
def test_no_lie_gets_more_than_is_claimed(grace: int, lies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live, "STEPS", 40)
    rounds = 8 * (1 + grace)  # as many as there are to lie about
    plan = planned(clients=8, colluders=0, stragglers=6, rounds=rounds, gamma=100.0, reserve="worst", grace=grace)
    found = lightdp.audit(plan, values=20_000, confidence=SURE, lies=lies)
    assert found.problems == ()
    assert found.exact.mu > found.announced.mu  # what an odometer that believes all announcements would miss


def test_lies_on_a_sparse_graph_get_no_more_than_is_claimed() -> None:
    plan = planned(clients=9, degree=4, colluders=1, stragglers=2)
    assert lightdp.audit(plan, values=20_000, confidence=SURE, lies="rotation").problems == ()
