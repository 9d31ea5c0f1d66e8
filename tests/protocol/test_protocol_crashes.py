"""A process that is killed between any two system calls: whatever it had written, no round gets two uploads."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import _files
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol import Client, ClientState, File
from support.parties import joined, planned, play

if TYPE_CHECKING:
    from pathlib import Path


def restored(path: Path) -> Client:
    return Client.restore(planned(), length=5, store=File(path))


# ---- kill -9 ----

# A child restores the client and answers the open round; it is killed before its n-th call, or in the middle of it if
# it writes. What it answered is written at once, as if sent. Then a new process, which nobody kills, does the same.
_KILLED = """
import json, os, signal, sys
from pathlib import Path
import numpy
import lightdp
from lightdp import errors
from support.parties import joined, planned, play

folder, plan = Path(sys.argv[1]), planned()
server, clients = joined(plan, 5, folder=folder)
path, anchor = folder / "client-00.json", folder / "anchor"
play(server, clients, [0, 1, 2])
anchor.write_bytes(Path(f"{path}.serial").read_bytes())
start, sent = server.announce(since=0), folder / "sent"
kept = {each: each.read_bytes() for each in (path, Path(f"{path}.serial"), anchor)}
CALLS = ("open", "write", "fsync", "ftruncate", "close", "fstat", "lseek")

def answer(kill, halves):
    called = []
    def counted(name, real):
        def call(*given):
            called.append(name)
            if len(called) == kill:
                if halves:
                    real(given[0], bytes(given[1])[: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given)
        return call
    client = lightdp.Client.restore(plan, length=5, store=lightdp.File(path, anchor=anchor))
    real = {name: getattr(os, name) for name in CALLS}
    for name in CALLS:
        setattr(os, name, counted(name, real[name]))
    try:
        message = client.begin(start).upload(numpy.ones(5))
        with sent.open("ab") as file:
            file.write(message)
    except errors.ProtocolError:
        pass
    finally:
        for name in CALLS:
            setattr(os, name, real[name])
    return called

def child(*given):
    number = os.fork()
    if number == 0:
        answer(*given)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])

def prepared():
    for each, content in kept.items():
        each.write_bytes(content)
    sent.write_bytes(b"")

prepared()
called, size = answer(0, False), sent.stat().st_size
kills = [(at + 1, halves) for at, name in enumerate(called) for halves in (False, True)[: 1 + (name == "write")]]
found = []
for kill in kills:
    prepared()
    ends = [child(*kill)]
    left = [sent.stat().st_size // size]
    ends.append(child(0, False))
    found.append([ends, [*left, sent.stat().st_size // size]])
print(json.dumps([called, found]))
"""


def test_a_client_that_is_killed_anywhere_answers_a_round_once(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", _KILLED, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=True)
    called, found = json.loads(done.stdout)
    assert [name for name in called if name in ("write", "fsync")] == ["write", "fsync", "write", "write", "fsync"]
    assert len(found) == len(called) + 3
    assert all(ends == [-9, 0] for ends, _ in found)  # whatever is left, a new process reads it
    left = [left for _, left in found]
    assert all(first == 0 for first, _ in left)  # nothing leaves before all is kept
    assert {both for _, both in left} == {0, 1}  # and nothing a second time; some crashes spend the round


# ---- lines ----


def test_a_torn_line_does_not_count_and_any_other_is_refused(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path, mark = tmp_path / "client-00.json", tmp_path / "client-00.json.serial"
    joined_with, marked = path.read_bytes(), mark.read_bytes()
    play(server, clients, [0, 1, 2])
    whole = path.read_bytes()
    state = ClientState.from_bytes(whole)
    assert whole[len(joined_with) :].count(b"\n") == 1
    for end in range(len(joined_with), len(whole)):
        path.write_bytes(whole[:end])
        mark.write_bytes(marked)  # after a power failure it may lag behind; it is never ahead
        assert ClientState.from_bytes(File(path).load()).sent == set()
    for at in range(len(joined_with), len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert ClientState.from_bytes(File(path).load()).to_bytes() == state.to_bytes()
        except ArgumentError:
            continue
        assert at - whole.index(b'"first"', len(joined_with)) < len(b'"first"')  # it says nothing that others do not
    path.write_bytes(whole)
    assert restored(path).next_round == 1


def test_a_torn_line_is_overwritten(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    play(server, clients, [0, 1, 2])
    before = path.read_bytes()
    path.write_bytes(before + b'{"serial": 4, "run": "61')
    assert server.receive(restored(path).begin(server.announce(since=0)).upload(np.zeros(5)))
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["serial"] for line in lines] == [2, 3, 4]
    assert path.read_bytes().startswith(before)


@pytest.mark.parametrize("changed", ["left out", "twice", "swapped", "of another run"])
def test_lines_that_do_not_follow_each_other_are_refused(tmp_path: Path, changed: str) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    for _ in range(3):
        play(server, clients, [0, 1, 2])
    base, *lines = path.read_bytes().splitlines(keepends=True)
    other = lines[1].replace(b'"run": "6', b'"run": "7')
    assert other != lines[1]
    path.write_bytes(
        base
        + b"".join(
            {
                "left out": [lines[0], lines[2]],
                "twice": [lines[0], lines[1], lines[1], lines[2]],
                "swapped": [lines[1], lines[0], lines[2]],
                "of another run": [lines[0], other, lines[2]],
            }[changed]
        )
    )
    with pytest.raises(ArgumentError, match=r"path must hold whole lines, got path='.*client-00.json'"):
        restored(path)
    with pytest.raises(ArgumentError, match="path must hold whole lines"):
        clients[0].begin(server.announce()).upload(np.zeros(5))


# ---- full disks ----


@pytest.mark.parametrize("written", [0, 10])
def test_nothing_stays_of_a_line_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path, begun = tmp_path / "client-00.json", clients[0].begin(server.announce())
    before, real = path.read_bytes(), os.write

    def full(descriptor: int, data: Any) -> int:
        if os.fstat(descriptor).st_ino != path.stat().st_ino:
            return real(descriptor, data)
        if written and path.read_bytes() == before:
            return real(descriptor, bytes(data[:written]))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            begun.upload(np.zeros(5))
    assert path.read_bytes() == before
    assert server.receive(begun.upload(np.zeros(5)))
    assert restored(path).next_round == 1


def test_a_line_that_is_not_sure_to_be_on_the_disk_spends_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have read it already: it stays, and the client that failed to keep it stops."""
    server, clients = joined(planned(), 5, folder=tmp_path)
    begun = clients[0].begin(server.announce())

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(_files, "flush", failing)
        with pytest.raises(OSError, match="Input/output"):
            begun.upload(np.zeros(5))
    with pytest.raises(ProtocolError, match="nothing was saved"):
        begun.upload(np.ones(5))
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        restored(tmp_path / "client-00.json").begin(server.announce())


# ---- what is written ----


def test_a_round_writes_one_line_and_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path, read = tmp_path / "client-00.json", []
    real = File._found

    def noted(file: File, *given: Any) -> Any:
        found = real(file, *given)
        read.append(file._seen is None or found is not file._seen[1])
        return found

    monkeypatch.setattr(File, "_found", noted)
    sizes, inode = [path.stat().st_size], path.stat().st_ino
    for _ in range(3):
        assert server.receive(clients[0].begin(server.announce()).upload(np.zeros(5)))
        for client in clients[1:3]:
            server.receive(client.begin(server.announce()).upload(np.zeros(5)))
        server.close()
        sizes.append(path.stat().st_size)
    assert path.stat().st_ino == inode
    assert read == [False] * 9
    assert max(np.diff(sizes)) < 400


def test_a_line_is_on_the_disk_before_the_upload_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path, seen, real = tmp_path / "client-00.json", [], os.fsync

    def watched(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_ino == path.stat().st_ino, path.read_bytes().count(b"\n")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    clients[0].begin(server.announce()).upload(np.zeros(5))
    assert seen == [(True, 2)]
