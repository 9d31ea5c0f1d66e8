"""The mod where a process lives on: its client stays in memory as long as nothing else has saved the state."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.errors import ArgumentError
from lightdp.federation import Member
from lightdp.flower import _vault
from lightdp.keys import Identity
from lightdp.protocol import File
from support.flower_grid import LocalGrid
from support.flower_talk import Talk, a_plan, an_app, enrolment, refused
from support.flower_training import an_app as an_adder
from support.flower_training import planned, step, the_change, trained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flwr.app import Message


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    _vault._KEPT.clear()
    yield
    _vault._KEPT.clear()


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """Every client that the mod restores."""
    found: list[Member] = []
    real = Member.restore

    def restore(*given: Any, **named: Any) -> Member:
        found.append(real(*given, **named))
        return found[-1]

    monkeypatch.setattr(Member, "restore", restore)
    return found


def living(*given: Any) -> Talk:
    """A server and three nodes whose processes live on, after the key round."""
    talk = Talk(*given)
    talk.grid.fresh = False
    return talk


def answered(talk: Talk, reply: Message) -> None:
    assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())


@pytest.mark.parametrize("with_file", [True, False])
def test_a_process_that_lives_on_restores_no_client_and_answers_each_round_once(
    with_file: bool, restored: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = living(an_app(), a_plan(epsilon=1e6, clip=10.0))
    if not with_file:
        talk.grid.simulate(monkeypatch)
    talk.enrol()
    for _ in range(3):
        message = talk.start()
        assert talk.mean() == pytest.approx(np.full(4, 0.1), abs=0.15)
        assert refused(talk.grid.handle(0, message), "was answered, or is over")
    assert enrolment(talk.key(0)) == enrolment(talk.grid.left[0][1])
    assert restored == []
    talk.grid.fresh = True
    assert talk.grid.handle(0, talk.start()).has_content()
    assert len(restored) == 1


def test_what_another_process_has_answered_is_not_answered_again(
    restored: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = living(an_app(), a_plan(stragglers=0))
    talk.enrol()
    talk.mean()
    here, message = _vault._KEPT, talk.start()
    monkeypatch.setattr(_vault, "_KEPT", OrderedDict())  # that of another process of the nodes
    talk.mean()
    assert len(restored) == 3
    monkeypatch.setattr(_vault, "_KEPT", here)
    assert refused(talk.grid.handle(0, message), "round 1 was answered")
    talk.mean()
    assert len(restored) == 6


def test_a_state_that_was_saved_with_an_error_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, keeps = living(), {"save": File.save, "append": File.append}
    talk.enrol()

    def failing(name: str) -> Callable[[File, bytes], None]:
        def kept_and_failed(file: File, data: bytes) -> None:
            keeps[name](file, data)
            raise ArgumentError("of the disk")

        return kept_and_failed

    with monkeypatch.context() as patch:
        for name in keeps:
            patch.setattr(File, name, failing(name))
        message = talk.start()
        assert refused(talk.grid.handle(0, message), "of the disk")  # the roster is saved
        assert refused(talk.grid.handle(0, message), "of the disk")  # the round is charged
    assert refused(talk.grid.handle(0, message), "round 0 was answered")


def test_a_state_that_was_not_saved_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = living()
    talk.enrol()

    def full(*_: Any) -> None:
        raise ArgumentError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(File, "append", full)
        assert refused(talk.grid.handle(0, talk.start()), "no space")
    assert talk.grid.handle(0, talk.start()).has_content()


@pytest.mark.parametrize("with_file", [True, False])
def test_of_many_copies_at_the_same_time_one_is_answered(with_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = living(an_app(), a_plan(rounds=100))
    if not with_file:
        talk.grid.simulate(monkeypatch)
    talk.enrol()
    for _ in range(5):
        message, together = talk.start(), threading.Barrier(4)

        def copy(_: int, message: Message = message, together: threading.Barrier = together) -> Message:
            return talk.grid.handle(0, message, keep=False, together=together)

        with ThreadPoolExecutor(4) as pool:
            (reply,) = [each for each in pool.map(copy, range(4)) if each.has_content()]
        answered(talk, reply)
        talk.server.close()


def test_the_clients_of_few_nodes_are_kept_and_nothing_of_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vault, "_MOST", 2)
    talk = living()
    talk.enrol()
    assert len(_vault._KEPT) == 2
    assert all(len(vault._state) == 0 for vault in _vault._KEPT.values())


def test_a_client_in_memory_is_not_used_with_other_pins(tmp_path: Path, restored: list[Member]) -> None:
    talk, pins = living(), tmp_path / "pins"
    talk.enrol()
    talk.mean()
    pins.write_text(f"node-1007 {Identity.generate().public.hex()}\n")
    talk.grid.nodes[0].config["lightdp-pins"] = str(pins)
    assert refused(talk.grid.handle(0, talk.start()), "has an identity other than the pinned one")  # as a new process
    del talk.grid.nodes[0].config["lightdp-pins"]
    assert talk.grid.handle(0, talk.start()).has_content()
    assert len(restored) == 2


def test_a_client_in_memory_is_not_used_by_a_fork(monkeypatch: pytest.MonkeyPatch, restored: list[Member]) -> None:
    talk = living()
    talk.enrol()
    number = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: number)
    assert talk.grid.handle(0, talk.start()).has_content()
    assert len(restored) == 1


def test_a_client_whose_app_was_interrupted_is_restored(restored: list[Member]) -> None:
    stops = itertools.count()

    def train(weights: Any) -> Any:
        if next(stops) == 0:
            raise KeyboardInterrupt
        return weights

    talk = living(an_app(train))
    talk.enrol()
    message = talk.start()
    with pytest.raises(KeyboardInterrupt):
        talk.grid.handle(0, message)
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    assert len(restored) == 1


@pytest.mark.parametrize("grace", [0, 1])
def test_a_training_with_faults_is_the_same_where_processes_live_on(grace: int) -> None:
    grid = LocalGrid(an_adder(), 5)
    grid.fresh = False
    grid.faults |= {(1, 0): "crash", (2, 1): "replay", (3, 2): "twice", (4, 3): "lost", (5, 4): "late", (6, 0): "drop"}
    _, result = trained(grid, planned(epsilon=1e6, grace=grace))
    every = sum(step(at, 40) for at in range(5)) / 5
    missing = step(0, 40) + step(3, 40) + step(0, 40) + (0 if grace else step(4, 40))
    assert the_change(result) == pytest.approx(6 * every - missing / 5, abs=0.02)
