"""The file of a client's state: lost ones, links, anchors, modes, and what is no state."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from lightdp._files import contents, locked
from lightdp.errors import ArgumentError, LightDPError, ProtocolError
from lightdp.protocol import Client, File, store
from support.parties import RUN, joined, planned

OTHER_RUN = b"another, as long"


def new(path: Path | str, run: bytes = RUN, anchor: Path | None = None) -> Client:
    return Client.new(planned(), length=5, run=run, name="a", store=File(path, anchor=anchor))


def restored(path: Path | str, anchor: Path | None = None) -> Client:
    return Client.restore(planned(), length=5, store=File(path, anchor=anchor))


# ---- lost states ----


@pytest.mark.parametrize("left", ["a.json.serial", "anchor"])
def test_a_lost_state_is_not_taken_for_none(tmp_path: Path, left: str) -> None:
    path, anchor = tmp_path / "a.json", tmp_path / "anchor"
    new(path, anchor=anchor).enrol()
    for each in {"a.json", "a.json.serial", "anchor"} - {left}:
        (tmp_path / each).unlink()
    lost = rf"a.json is lost: .*{left} says that serial 1 of run {RUN.hex()} was saved there.*remove .*{left} too"
    with pytest.raises(ProtocolError, match=lost):
        restored(path, anchor)
    for run in (RUN, OTHER_RUN):
        with pytest.raises(ProtocolError, match=lost):
            new(path, run, anchor).enrol()
    assert not path.exists()
    for mark in (tmp_path / "a.json.serial", anchor):
        mark.unlink(missing_ok=True)
    new(path, OTHER_RUN, anchor).enrol()
    assert restored(path, anchor).run == OTHER_RUN


def test_a_client_that_runs_puts_a_lost_state_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    client = new(path)
    client.enrol()
    twin = restored(path)
    path.unlink()
    message = client.enrol()  # the serial says that its state is the newest
    assert restored(path).enrol() == message
    path.unlink()
    with pytest.raises(ProtocolError, match="is lost"):
        twin.enrol()


def test_a_lost_state_of_a_node_is_not_begun_anew(tmp_path: Path) -> None:
    """As a store that counts over runs by itself and found no file would do it."""
    path = tmp_path / "a.json"
    File(path).save(b'{"run": "%s", "serial": 1}' % RUN.hex().encode())
    File(path).save(b'{"run": "%s", "serial": 2}' % OTHER_RUN.hex().encode())
    path.unlink()
    with pytest.raises(ProtocolError, match="is lost"):
        File(path).save(b'{"run": "%s", "serial": 1}' % (b"c" * 32))


# ---- anchors ----


def test_an_anchor_that_cannot_be_written_fails_before_the_state_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ArgumentError, match=r"path must be writable, got path='.*nowhere/anchor': No such file"):
        new(path, anchor=tmp_path / "nowhere" / "anchor").enrol()
    assert not path.exists()
    anchor = tmp_path / "anchor"
    client = new(path, anchor=anchor)
    client.enrol()
    saved = path.read_bytes()
    anchor.unlink()
    os.mkfifo(anchor)
    with pytest.raises(ArgumentError, match="must be a regular file"):
        client.enrol()
    assert path.read_bytes() == saved


@pytest.mark.parametrize("name", ["a.json", "a.json.serial", "link"])
def test_an_anchor_is_another_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a.json")
    with pytest.raises(ArgumentError, match=rf"anchor must be another file than path .*{name}'"):
        File(tmp_path / "a.json", anchor=tmp_path / name)


def test_an_anchor_is_on_its_disk_when_a_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, anchor, synced = tmp_path / "a.json", tmp_path / "anchor", []
    client = new(path, anchor=anchor)
    client.enrol()
    wait = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        wait(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    client.enrol()
    assert anchor.stat().st_ino in synced


# ---- names ----


def test_a_link_is_the_file_that_it_names(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link"
    client = new(path)
    client.enrol()
    link.symlink_to(path)
    twin = restored(link)
    client.enrol()
    with pytest.raises(ProtocolError, match="was saved by another client"):
        twin.enrol()
    restored(link).enrol()
    assert link.is_symlink()
    with pytest.raises(ProtocolError, match="was saved by another client"):
        client.enrol()


def test_a_name_means_the_folder_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    client = Client.new(planned(), length=5, run=RUN, name="a", store=File("a.json", anchor="~/anchor"))
    client.enrol()
    monkeypatch.chdir("other")
    client.enrol()
    assert list(Path.cwd().iterdir()) == []
    assert (tmp_path / "anchor").read_bytes().split()[1] == b"2"


# ---- what is no private state ----


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602])
def test_a_state_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.json"
    new(path).enrol()
    path.chmod(mode)
    with pytest.raises(
        ArgumentError, match=rf"path must be private \(mode 0600\), got path='.*a.json' mode {mode:04o}"
    ):
        restored(path)
    path.chmod(0o600)
    restored(path)


@pytest.mark.parametrize("junk", [b"precious", b"[" * 200_000, b"{}"])
def test_what_is_no_state_is_not_replaced(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(junk)
    with pytest.raises(ArgumentError, match="path must hold a client's state or be free"):
        new(path).enrol()
    assert path.read_bytes() == junk


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path: Path) -> None:
    pipe, huge = tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe, 0o600)
    huge.touch(mode=0o600)
    os.truncate(huge, 2**40)  # sparse
    for path, why in ((pipe, "must be a regular file"), (huge, "must have at most"), (tmp_path, "regular file")):
        with pytest.raises(ArgumentError, match=why):
            restored(path)
        with pytest.raises(ArgumentError, match=why):
            new(path).enrol()
    new(tmp_path / "a.json").enrol()
    os.truncate(tmp_path / "a.json.serial", 2**40)
    with pytest.raises(ArgumentError, match="must have at most 4096 bytes"):
        restored(tmp_path / "a.json")
    with pytest.raises(ArgumentError, match=r"must have at most 3 bytes, got path='.*b' of 4"):
        contents(_written(tmp_path / "b", b"text"), limit=3)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# ---- systems and file systems without locks ----


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(ArgumentError, match=r"a.json.serial cannot be locked: its file system has no locks"):
            new(tmp_path / "a.json").enrol()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not (tmp_path / "a.json").exists()


def test_other_failures_of_a_lock_are_told_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="input/output error"), locked(tmp_path / "lock"):
        pass


_WITHOUT = """
import sys
sys.modules["fcntl"] = None
import lightdp
plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5)
lightdp.Client.new(plan, length=4, run=bytes(16), name="ann").enrol()
try:
    lightdp.Client.new(plan, length=4, run=bytes(16), name="ann", store=lightdp.File("ann.state")).enrol()
except lightdp.errors.ArgumentError as error:
    print(error)
"""


def test_a_system_without_locks_has_all_but_files(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _WITHOUT]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True, check=True)
    lock = tmp_path.resolve() / "ann.state.serial"
    assert done.stdout == f"{lock} cannot be locked: this system has neither flock nor msvcrt\n"


# ---- giving a state up ----


@pytest.mark.parametrize("damage", ["none", "lost", "older", "junk", "no serial", "junk serial"])
def test_a_state_that_is_given_up_makes_room_for_a_new_client(tmp_path: Path, damage: str) -> None:
    path, serial, anchor = tmp_path / "s", tmp_path / "s.serial", tmp_path / "anchor"
    new(path, anchor=anchor).enrol()
    old = path.read_bytes()
    restored(path, anchor).enrol()
    if damage == "lost":
        path.unlink()
    elif damage in ("older", "junk"):
        path.write_bytes(old if damage == "older" else b"junk")
    elif damage == "no serial":
        serial.unlink()
    elif damage == "junk serial":
        serial.write_bytes(b"junk")
    if damage not in ("none", "no serial"):
        with pytest.raises(LightDPError):
            new(path, OTHER_RUN, anchor).enrol()
    there = {each for each in (path, anchor, serial) if each.exists()}
    assert set(File(path, anchor=anchor).give_up()) == there | {serial}
    assert not path.exists()
    assert not anchor.exists()
    assert serial.read_bytes() == b""
    new(path, OTHER_RUN, anchor).enrol()
    assert json.loads(path.read_bytes())["serial"] == 1


@pytest.mark.parametrize("there", [None, b"", b"precious", b"[]"])
def test_what_is_no_state_is_not_given_up(tmp_path: Path, there: bytes | None) -> None:
    path = tmp_path / "diary"
    if there is not None:
        path.write_bytes(there)
    with pytest.raises(ArgumentError, match="path must hold a client's state"):
        File(path).give_up()
    assert there is None or path.read_bytes() == there
    assert not (tmp_path / "diary.serial").exists()


@pytest.mark.parametrize("removed", [1, 2])
def test_a_state_that_is_half_given_up_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    path, anchor, calls = tmp_path / "s", tmp_path / "anchor", count(1)
    new(path, anchor=anchor).enrol()

    def stop(_: object) -> None:
        if next(calls) == removed:
            raise OSError("the machine stops")

    with monkeypatch.context() as patch:
        patch.setattr(store, "synchronise", stop)
        with pytest.raises(OSError, match="stops"):
            File(path, anchor=anchor).give_up()
    assert path.exists() + anchor.exists() == 2 - removed
    with pytest.raises(ProtocolError, match="is lost"):
        new(path, OTHER_RUN, anchor).enrol()


def test_whoever_waits_for_a_state_that_is_given_up_does_not_answer_beside_another(tmp_path: Path) -> None:
    """The lock outlives the state: of two clients of one state, one saves, also if it was given up in between."""
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    twin = restored(path)
    lock = (tmp_path / "client-00.json.serial").stat().st_ino
    begun = [each.begin(server.announce()) for each in (clients[0], twin)]
    File(path).give_up()
    assert (tmp_path / "client-00.json.serial").stat().st_ino == lock
    assert server.receive(begun[0].upload(np.zeros(5)))
    with pytest.raises(ProtocolError, match="was saved by another client"):
        begun[1].upload(np.zeros(5))
