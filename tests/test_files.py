"""Files and locks on systems that are not Linux, as far as Linux can show it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightdp import _files

# What a program finds on Windows: no fcntl, no pwrite, no modes, no folders that can be opened, and msvcrt, whose locks
# are here those of POSIX: of a process, for the bytes from a position on.
_WINDOWS = """
import errno, os, sys, types
import fcntl as posix
assert not any(name.startswith("lightdp") for name in sys.modules)
sys.modules["fcntl"] = None
for name in ("pwrite", "pread", "O_NONBLOCK", "O_NOFOLLOW", "sched_getaffinity", "getloadavg", "link"):
    delattr(os, name)

def locking(descriptor, mode, count):
    assert os.lseek(descriptor, 0, os.SEEK_CUR) > os.fstat(descriptor).st_size  # or nobody could read the file
    try:
        posix.lockf(descriptor, {0: posix.LOCK_UN, 2: posix.LOCK_EX | posix.LOCK_NB}[mode], count, 0, os.SEEK_CUR)
    except OSError:
        raise PermissionError(errno.EACCES, "held") from None

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_UNLCK=0, LK_NBLCK=2)
from lightdp import _files
del sys.modules["msvcrt"]  # or Python's own modules would find it, too
_files._WINDOWS = True
real = os.open

def refused(path, flags, *mode):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder")
    return real(path, flags, *mode)

def renamed(old, new, rename=os.rename):
    if os.path.exists(new):
        raise FileExistsError(errno.EEXIST, "exists")
    rename(old, new)

os.open, os.rename = refused, renamed
"""


def on_windows(code: str, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _WINDOWS + code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)


def test_importing_lightdp_needs_no_module_of_one_system(tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('fcntl', 'msvcrt', 'pwd', 'grp', 'resource', 'termios'): sys.modules[name] = None\n"
        "import lightdp, lightdp.cli, lightdp.federation, lightdp.protocol, lightdp.runlog\nprint('all')"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "all\n"


def test_a_client_keeps_its_state_and_identity_without_flock_and_modes(tmp_path: Path) -> None:
    code = """
import lightdp
from lightdp.keys import Identity
plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5)
store = lightdp.File("ann.state", anchor="ann.anchor")
first = lightdp.Client.new(plan, length=4, run=bytes(16), name="ann", store=store)
message = first.enrol()
os.chmod("ann.state", 0o666)  # as Windows shows every file
assert lightdp.Client.restore(plan, length=4, store=store).enrol() == message
try:
    first.enrol()
except lightdp.errors.ProtocolError:
    print("one client")
identity = Identity.generate()
identity.save("ann.pem")
os.chmod("ann.pem", 0o666)
assert Identity.load("ann.pem").public == identity.public
try:
    Identity.generate().save("ann.pem")
except lightdp.errors.ArgumentError:
    print("never replaced")
assert len(store.give_up()) == 3
"""
    run = on_windows(code, tmp_path)
    assert run.communicate(timeout=60)[0] == "one client\nnever replaced\n"
    assert run.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"ann.state.serial", "ann.pem"}  # nothing temporary is left


def test_a_lock_of_windows_is_held_by_one_and_beyond_what_its_file_holds(tmp_path: Path) -> None:
    Path(tmp_path, "lock").write_bytes(b"content")
    holds = "with _files.locked('lock'):\n    print('held', flush=True)\n    input()\nprint('free', flush=True)"
    holder = on_windows(holds, tmp_path)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    tries = "try:\n    with _files.locked('lock', wait=False): print('mine')\nexcept BlockingIOError: print('blocked')"
    assert on_windows(tries, tmp_path).communicate(timeout=60)[0] == "blocked\n"
    waits = "print('asks', flush=True)\nwith _files.locked('lock'): print('mine', flush=True)"
    waiter = on_windows(waits, tmp_path)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "asks\n"
    time.sleep(0.2)
    assert waiter.poll() is None
    assert holder.communicate("\n", timeout=60)[0] == "free\n"
    assert waiter.communicate(timeout=60)[0] == "mine\n"
    assert on_windows(tries, tmp_path).communicate(timeout=60)[0] == "mine\n"


@pytest.mark.parametrize("has_it", [True, False])
def test_content_is_flushed_through_the_drive_where_the_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_it: bool
) -> None:
    """As on macOS: F_FULLFSYNC, and fsync on file systems that do not have it."""
    calls = []

    class Mac:
        F_FULLFSYNC = 51

        @staticmethod
        def fcntl(descriptor: int, command: int) -> None:
            calls.append(("full", os.fstat(descriptor).st_mode & 0o170000, command))
            if not has_it:
                raise OSError(errno.ENOTSUP, "not supported")

    def fsync(descriptor: int) -> None:
        calls.append(("fsync", os.fstat(descriptor).st_mode & 0o170000, 0))

    monkeypatch.setattr(_files, "_FCNTL", Mac)
    monkeypatch.setattr(os, "fsync", fsync)
    with _files.durable(tmp_path / "file") as file:
        file.write(b"content")
    file_call, folder_call = ("full", 0o100000, 51), ("full", 0o040000, 51)
    after = [] if has_it else [("fsync", 0o100000, 0)], [] if has_it else [("fsync", 0o040000, 0)]
    assert calls == [file_call, *after[0], folder_call, *after[1]]


def test_a_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda _descriptor, data: len(data) - 1)
    with _files.overwritten(tmp_path / "number") as descriptor, pytest.raises(OSError, match="not written in full"):
        _files.write(descriptor, b"12")
