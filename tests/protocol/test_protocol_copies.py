"""Copies of a client, in memory, in a process or on disk: one of them answers a round, and others are refused."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp._files import locked
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol import Client, File, marks
from lightdp.protocol.host import Host
from support.parties import RUN, joined, planned, play

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OTHER_RUN = b"another, as long"


def restored(path: Path, **options: Any) -> Client:
    return Client.restore(planned(), length=5, store=File(path), **options)


def on(monkeypatch: pytest.MonkeyPatch, machine: str | None, boot: str | None) -> None:
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: cls(machine, boot)))


# ---- several clients of one state ----


def test_of_two_clients_of_one_file_one_answers(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    twins = [restored(path), Client.restore(planned(), length=5, store=clients[0]._store)]  # type: ignore[arg-type]
    start = server.announce()
    begun = [each.begin(start) for each in (clients[0], *twins)]
    assert server.receive(begun[0].upload(np.zeros(5)))
    saved = path.read_bytes()
    for each in begun[1:]:
        with pytest.raises(ProtocolError, match="was saved by another client"):
            each.upload(np.zeros(5))
    assert path.read_bytes() == saved
    assert clients[0].next_round == 1


def test_of_many_clients_of_one_file_in_threads_one_answers(tmp_path: Path) -> None:
    server, _ = joined(planned(), 5, folder=tmp_path)
    start, together = server.announce(), threading.Barrier(6)
    begun = [restored(tmp_path / "client-00.json").begin(start) for _ in range(6)]

    def answer(at: int) -> bool:
        together.wait()
        try:
            begun[at].upload(np.zeros(5))
        except ProtocolError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(answer, range(6))) == 1


def test_a_save_waits_for_the_lock(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    begun, saved = clients[0].begin(server.announce()), threading.Event()

    def save() -> None:
        begun.upload(np.zeros(5))
        saved.set()

    with locked(tmp_path / "client-00.json.serial"):
        thread = threading.Thread(target=save)
        thread.start()
        assert not saved.wait(0.2)
    thread.join()
    assert saved.is_set()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_is_not_copied(copied: Callable[[Client], object]) -> None:
    server, clients = joined(planned(), 5)
    with pytest.raises(ProtocolError, match="a client must not be copied"):
        copied(clients[0])
    with pytest.raises(ProtocolError, match="a client must not be copied"):
        pickle.dumps(clients[0].begin(server.announce()))  # it belongs to the client


_FORK = """
import os, numpy, lightdp
from support.parties import joined, planned
server, clients = joined(planned(), 5)
start = server.announce()
begun = clients[0].begin(start)
child = os.fork()
if child == 0:
    attempts = (clients[0].enrol, lambda: clients[0].join(server.roster()), lambda: clients[0].begin(start),
                lambda: begun.upload(numpy.zeros(5)))
    refused = 0
    for attempt in attempts:
        try:
            attempt()
        except lightdp.errors.ProtocolError as error:
            refused += "forked" in str(error)
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), server.receive(begun.upload(numpy.zeros(5))))
"""


def test_after_a_fork_the_parent_alone_answers() -> None:
    command, paths = [sys.executable, "-W", "ignore", "-c", _FORK], {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=True)
    assert done.stdout == "4 True\n"


# ---- older copies ----


def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    old = path.read_bytes()
    play(server, clients, [0, 1, 2])
    new = path.read_bytes()
    path.write_bytes(old)
    with pytest.raises(
        ProtocolError, match=r"has serial 2 of run .* says that serial 3 of run .* was saved last: an older copy"
    ):
        restored(path)
    path.write_bytes(new)
    assert restored(path).next_round == 1


def test_an_older_copy_under_a_client_that_runs_is_noticed_when_it_saves(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    old = path.read_bytes()
    play(server, clients, [0, 1, 2])
    path.write_bytes(old)
    with pytest.raises(ProtocolError, match="replaced by a copy: nothing was saved"):
        clients[0].begin(server.announce()).upload(np.zeros(5))
    assert path.read_bytes() == old


def test_an_older_copy_of_the_file_and_its_serial_is_noticed_by_an_anchor_alone(tmp_path: Path) -> None:
    """Without the anchor nothing on the disk tells it from the newest state: what the threat model says of backups."""
    plan, path, anchor = planned(), tmp_path / "a.json", tmp_path / "elsewhere"
    client = Client.new(plan, length=5, run=RUN, name="a", store=File(path, anchor=anchor))
    client.enrol()
    files = [path, tmp_path / "a.json.serial"]
    old = [each.read_bytes() for each in files]
    client.enrol()
    for each, content in zip(files, old, strict=True):
        each.write_bytes(content)
    with pytest.raises(ProtocolError, match="an older copy could answer"):
        Client.restore(plan, length=5, store=File(path, anchor=anchor))
    again = Client.restore(plan, length=5, store=File(path))
    with pytest.raises(ProtocolError, match="replaced by a copy"):
        File(path, anchor=anchor).save(again._state.next().to_bytes())
    again.enrol()


def test_an_anchor_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    plan, path, anchor = planned(), tmp_path / "a.json", tmp_path / "elsewhere"
    Client.new(plan, length=5, run=RUN, name="a", store=File(path)).enrol()
    store = File(path, anchor=anchor)
    with pytest.raises(ArgumentError, match=r"anchor must exist, as .*a.json does, got anchor='.*elsewhere'"):
        Client.restore(plan, length=5, store=store)
    anchor.touch()  # as the operator does it
    client = Client.restore(plan, length=5, store=store)
    client.enrol()
    assert anchor.read_bytes() == (tmp_path / "a.json.serial").read_bytes()
    anchor.unlink()
    saved = path.read_bytes()
    with pytest.raises(ArgumentError, match="anchor must exist"):
        client.enrol()
    assert path.read_bytes() == saved


def test_a_new_run_takes_the_file_over_and_a_copy_of_the_last_run_is_refused(tmp_path: Path) -> None:
    plan, path = planned(), tmp_path / "a.json"
    first = Client.new(plan, length=5, run=RUN, name="a", store=File(path))
    for _ in range(3):
        first.enrol()
    old = path.read_bytes()
    second = Client.new(plan, length=5, run=OTHER_RUN, name="a", store=File(path))
    second.enrol()
    assert restored(path).run == OTHER_RUN
    with pytest.raises(ProtocolError, match="was saved by another client"):
        first.enrol()
    path.write_bytes(old)
    with pytest.raises(ProtocolError, match="an older copy could answer"):
        restored(path)


@pytest.mark.parametrize("removed", [False, True])
def test_a_twin_of_an_earlier_run_stays_refused_when_other_runs_have_used_the_file(
    tmp_path: Path, removed: bool
) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path, start = tmp_path / "client-00.json", server.announce()
    begun = restored(path).begin(start)  # its upload would have serial 3
    clients[0].begin(start).upload(np.zeros(5))
    if removed:  # then the numbers begin again
        path.unlink()
        (tmp_path / "client-00.json.serial").unlink()
    second = Client.new(planned(), length=5, run=OTHER_RUN, name="a", store=File(path))
    for _ in range(4):
        second.enrol()
        saved = path.read_bytes()
        with pytest.raises(ProtocolError, match="was saved by another client"):
            begun.upload(np.zeros(5))
        assert path.read_bytes() == saved
    assert json.loads(saved)["serial"] == (4 if removed else 7)


def test_a_state_of_an_earlier_run_is_refused_though_its_serial_is_larger(tmp_path: Path) -> None:
    path, mark = tmp_path / "a.json", tmp_path / "a.json.serial"
    first = Client.new(planned(), length=5, run=RUN, name="a", store=File(path))
    for _ in range(3):
        first.enrol()
    old = path.read_bytes()
    path.unlink()
    mark.unlink()
    Client.new(planned(), length=5, run=OTHER_RUN, name="a", store=File(path)).enrol()
    path.write_bytes(old)
    with pytest.raises(ProtocolError, match="an older copy could answer"):
        restored(path)


def test_a_second_client_of_a_run_does_not_replace_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    Client.new(planned(), length=5, run=RUN, name="a", store=File(path)).enrol()
    saved = path.read_bytes()
    with pytest.raises(ProtocolError, match="was saved by another client"):
        Client.new(planned(), length=5, run=RUN, name="a", store=File(path)).enrol()
    assert path.read_bytes() == saved


def test_a_crash_between_the_state_and_its_serial_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path, start = tmp_path / "client-00.json", server.announce()

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(marks.Mark, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            clients[0].begin(start).upload(np.zeros(5))
    again = restored(path)
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        again.begin(start)
    for i in (1, 2, 3):
        server.receive(clients[i].begin(start).upload(np.zeros(5)))
    server.close()
    assert server.receive(again.begin(server.announce()).upload(np.zeros(5)))


def test_a_crash_between_the_first_state_of_a_run_and_its_serial_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, anchor = tmp_path / "a.json", tmp_path / "anchor"
    for _ in range(2):
        Client.new(planned(), length=5, run=os.urandom(16), name="a", store=File(path, anchor=anchor)).enrol()

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(marks.Mark, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            Client.new(planned(), length=5, run=RUN, name="a", store=File(path, anchor=anchor)).enrol()
    again = Client.restore(planned(), length=5, store=File(path, anchor=anchor))
    assert again.run == RUN
    again.enrol()
    assert anchor.read_bytes().split() == [RUN.hex().encode(), b"4"]
    Client.new(planned(), length=5, run=OTHER_RUN, name="a", store=File(path, anchor=anchor)).enrol()


@pytest.mark.parametrize("lost", [b"", b"\0" * 54])
def test_a_serial_that_a_power_failure_lost_is_written_again(tmp_path: Path, lost: bytes) -> None:
    path, mark = tmp_path / "a.json", tmp_path / "a.json.serial"
    Client.new(planned(), length=5, run=RUN, name="a", store=File(path)).enrol()
    whole = mark.read_bytes()
    mark.write_bytes(lost)
    restored(path).enrol()
    assert mark.read_bytes().split() == [RUN.hex().encode(), b"2"]
    assert whole.split() == [RUN.hex().encode(), b"1"]
    mark.write_bytes(b"something else")
    with pytest.raises(ArgumentError, match="must hold the serial number of a state"):
        restored(path)


def test_a_store_takes_states_alone(tmp_path: Path) -> None:
    for junk in (b"text", b"[]", b"{}", json.dumps({"run": RUN.hex(), "serial": -1}).encode()):
        with pytest.raises(ArgumentError, match="state must be a JSON object with its run and serial"):
            File(tmp_path / "a.json").save(junk)
    assert list(tmp_path.iterdir()) == []


# ---- other machines ----


@pytest.mark.parametrize(
    ("saved", "here", "same"),
    [
        (("a", "1"), ("a", "1"), True),
        (("a", "1"), ("a", "2"), True),
        (("a", "1"), ("b", "2"), False),
        (("a", "1"), ("b", "1"), False),
        ((None, "1"), (None, "1"), True),
        ((None, "1"), (None, "2"), False),
        (("a", "1"), (None, "1"), True),
        (("a", "1"), (None, "2"), False),
        (("a", None), (None, "1"), False),
        ((None, None), ("a", "1"), False),
        ((None, None), (None, None), True),
    ],
)
def test_a_state_of_another_machine_goes_on_if_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Any, here: Any, same: bool
) -> None:
    path = tmp_path / "a.json"
    on(monkeypatch, *saved)
    client = Client.new(planned(), length=5, run=RUN, name="a", store=File(path))
    message = client.enrol()
    on(monkeypatch, *here)
    if not same:
        with pytest.raises(ProtocolError, match="say moved=True if nothing else uses it or a copy of it, or enrol"):
            restored(path)
    again = restored(path, moved=not same)
    assert again.enrol() == message
    assert restored(path).enrol() == message  # it lives here now


def test_a_reboot_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    on(monkeypatch, "this machine", "before it")
    Client.new(planned(), length=5, run=RUN, name="a", store=File(path)).enrol()
    with caplog.at_level(logging.INFO, "lightdp"):
        restored(path)
        assert caplog.messages == []
        on(monkeypatch, "this machine", "after it")
        restored(path)
    assert caplog.messages == ["lightdp: the state was saved before this boot; no copy of it may be in use elsewhere"]


def test_a_machine_is_known_by_hashes_of_its_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = tmp_path / "machine-id"
    identity.write_text("0123456789abcdef0123456789abcdef\n")
    monkeypatch.setattr("lightdp.protocol.host._MACHINE", (str(tmp_path / "none"), str(identity)))
    Host.here.cache_clear()
    try:
        found = Host.here()
        assert found.machine is not None
        assert len(found.machine) == 32
        assert "0123456789abcdef" not in found.machine
        for nothing in ("", "uninitialized\n"):
            identity.write_text(nothing)
            Host.here.cache_clear()
            assert Host.here().machine is None
    finally:
        Host.here.cache_clear()
