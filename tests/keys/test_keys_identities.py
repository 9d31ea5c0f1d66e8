"""Identities on disk, and pins: whom a client knows."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from lightdp.errors import ArgumentError, WireError
from lightdp.keys import Identity, Pins
from support.key_holders import NAMES, ROSTER, identity_of

if TYPE_CHECKING:
    from pathlib import Path

# --- identities on disk ---


def test_identity_survives_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    identity = Identity.generate()
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).to_bytes() == identity.to_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_identity_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    identity_of("alice").save(path)
    with pytest.raises(ArgumentError, match="must not exist"):
        identity_of("bob").save(path)
    assert Identity.load(path).public == identity_of("alice").public
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_identity_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.pem"
    identity_of("alice").save(path)
    path.chmod(mode)
    with pytest.raises(ArgumentError, match="private"):
        Identity.load(path)


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_file_that_is_not_an_identity_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ArgumentError, match="Ed25519"):
        Identity.load(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "identity.pem", 0o600)
    with pytest.raises(ArgumentError, match="path must be a regular file"):
        Identity.load(tmp_path / "identity.pem")


# --- pins ---


def line(name: str, of: str | None = None) -> str:
    return f"{name} {identity_of(of or name).public.hex()}"


def test_pins_that_agree_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    path.write_text(f"# friends\n\n{line('alice')}  # met in person\n\t{line('bob')}\n{line('zoe')}\n")
    pins = Pins.load(path)
    assert set(pins.identities) == {"alice", "bob", "zoe"}
    pins.check(ROSTER)


def test_pinned_name_with_another_identity_is_refused() -> None:
    with pytest.raises(WireError, match="bob has an identity other"):
        Pins.parse(line("bob", of="eve")).check(ROSTER)


def test_pinned_identity_with_another_name_is_refused() -> None:
    with pytest.raises(WireError, match="bob has the pinned identity of robert"):
        Pins.parse(line("robert", of="bob")).check(ROSTER)


def test_client_without_a_pin_is_refused_only_if_all_must_be_pinned() -> None:
    pins = Pins.parse("\n".join(line(name) for name in NAMES[:3]))
    pins.check(ROSTER)
    with pytest.raises(WireError, match="dave is not pinned"):
        pins.check(ROSTER, complete=True)
    Pins.parse("\n".join(map(line, NAMES))).check(ROSTER, complete=True)


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "alice 00",
        f"{line('alice')} extra",
        line("alice").upper(),
        f"{line('alice')}\n{line('alice', of='bob')}",
        f"{line('alice')}\n{line('bob', of='alice')}",
        os.fsdecode(b"\xff") + line("alice"),
    ],
)
def test_pins_that_are_unclear_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="line"):
        Pins.parse(text)
