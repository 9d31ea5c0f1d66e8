"""`lightdp identity`: keys, the lines that peers pin, and files of pins."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

from lightdp.keys import Identity, Pins
from support.command_line import assert_refused

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run


@pytest.fixture
def lines(run: Run, tmp_path: Path) -> dict[str, str]:
    """The lines of three members, each in a file name.pub beside their keys."""
    made = {}
    for name in ("cem", "ann", "bob"):
        done = run("identity", "new", tmp_path / name, "--name", name)
        assert done.code == 0
        assert done.err.startswith(f"{tmp_path / name} holds a private key: ")
        made[name] = done.out.strip()
        (tmp_path / f"{name}.pub").write_text(done.out)
    return made


def test_a_new_key_is_private_and_its_line_can_be_pinned(lines: dict[str, str], tmp_path: Path) -> None:
    assert (tmp_path / "ann").stat().st_mode & 0o777 == 0o600
    identity = Identity.load(tmp_path / "ann")
    assert Pins.parse(lines["ann"]).identities == {"ann": identity.public}
    assert identity.to_bytes().hex() not in lines["ann"]


def test_an_existing_key_is_not_replaced(run: Run, lines: dict[str, str], tmp_path: Path) -> None:
    before = (tmp_path / "ann").read_bytes()
    assert_refused(run("identity", "new", tmp_path / "ann", "--name", "ann"), "path must not exist yet", "ann'")
    assert (tmp_path / "ann").read_bytes() == before
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["", "a b", "-x", "ann\n", "x" * 65, "ä"])
def test_a_name_that_cannot_be_pinned_is_refused_before_a_key_is_made(run: Run, tmp_path: Path, name: str) -> None:
    assert_refused(run("identity", "new", tmp_path / "key", f"--name={name}"), "name must be", repr(name))
    assert not (tmp_path / "key").exists()


def test_a_key_in_no_folder_is_refused(run: Run, tmp_path: Path) -> None:
    assert_refused(run("identity", "new", tmp_path / "no" / "key", "--name=ann"), "PATH must be in a folder", "no/key")


def test_show_prints_the_line_again(run: Run, lines: dict[str, str], tmp_path: Path) -> None:
    public = lines["ann"].split()[1]
    assert run("identity", "show", tmp_path / "ann", "--name", "ann").out.strip() == lines["ann"]
    assert run("identity", "show", tmp_path / "ann").out.strip() == public
    found = json.loads(run("identity", "show", tmp_path / "ann", "--json").out)
    assert found == {"path": str(tmp_path / "ann"), "name": None, "public": public}


def test_show_refuses_what_is_no_private_key(run: Run, lines: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ann.pub").chmod(0o600)
    assert_refused(run("identity", "show", tmp_path / "ann.pub"), "path must hold an Ed25519 key", "ann.pub")
    (tmp_path / "ann").chmod(0o640)
    assert_refused(run("identity", "show", tmp_path / "ann"), "mode 0640")
    assert_refused(run("identity", "show", tmp_path / "nothing"), "nothing")
    assert len(lines) == 3


def test_new_prints_json(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("identity", "new", tmp_path / "k", "--name", "k", "--json").out)
    assert found == {"path": str(tmp_path / "k"), "name": "k", "public": Identity.load(tmp_path / "k").public.hex()}


def test_pins_puts_lines_together_with_their_comments(run: Run, lines: dict[str, str], tmp_path: Path) -> None:
    pins = tmp_path / "pins"
    (tmp_path / "bob.pub").write_text(f"\n# by telephone\n  {lines['bob']}  # on Monday\n")
    done = run("identity", "pins", *(tmp_path / f"{name}.pub" for name in lines), "--out", pins)
    assert (done.code, done.out) == (0, "")
    assert done.err == f"wrote 3 pins to {pins}\n"
    assert pins.read_text() == f"{lines['ann']}\n{lines['bob']}  # on Monday\n{lines['cem']}\n"
    assert {name: key.hex() for name, key in Pins.load(pins).identities.items()} == {
        name: line.split()[1] for name, line in lines.items()
    }
    assert run("identity", "pins", pins).out == pins.read_text()
    again = json.loads(run("identity", "pins", pins, tmp_path / "ann.pub", "--json").out)["pins"]
    assert list(again) == ["ann", "bob", "cem"]


def test_a_member_is_added_in_place_and_exchanged_through_a_pipe(
    run: Run, lines: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "pins"
    pins.write_text(f"{lines['ann']}\n")
    assert run("identity", "pins", pins, tmp_path / "bob.pub", "--out", pins).code == 0
    assert pins.read_text() == f"{lines['ann']}\n{lines['bob']}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{lines['ann']}\n"))
    renewed = run("identity", "new", tmp_path / "bob.new", "--name", "bob").out
    (tmp_path / "bob.pub").write_text(renewed)
    assert_refused(run("identity", "pins", pins, tmp_path / "bob.pub"), "bob has another identity in", "pins, line 2")
    assert run("identity", "pins", "-", tmp_path / "bob.pub", "--out", pins).code == 0
    assert pins.read_text() == f"{lines['ann']}\n{renewed}"


def test_what_is_wrong_with_lines_is_named_with_its_place(run: Run, lines: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "more"
    pins = tmp_path / "pins"

    def refused(text: str, *words: str) -> None:
        file.write_text(text)
        done = run("identity", "pins", tmp_path / "ann.pub", file, "--out", pins)
        assert_refused(done, *words)
        assert not pins.exists()

    ann = lines["ann"].split()[1]
    refused(f"{lines['bob']}\nann {'0' * 64}\n", "more, line 2: ann has another identity in", "ann.pub, line 1")
    refused(f"eve {ann}\n", "more, line 1: eve has the identity of ann", "ann.pub, line 1")
    refused("\n\nsecret words\n", "more, line 3: must be 'name 64-lower-case-hex-digits'")
    refused(f"eve {ann.upper()}\n", "more, line 1: must be")
    file.write_text("secret words")
    assert "secret" not in run("identity", "pins", file).err
    file.write_bytes(b"\xff")
    assert_refused(run("identity", "pins", file), "FILES must be ASCII text", "more")
    assert_refused(run("identity", "pins", tmp_path / "ann"), "holds a private key")
    assert_refused(run("identity", "pins", tmp_path / "nothing"), "nothing")
    assert_refused(run("identity", "pins", tmp_path), "regular file")


def test_help_shows_examples(run: Run) -> None:
    page = run("identity", "--help").out
    for name in ("new", "show", "pins"):
        assert f"lightdp identity {name} " in page
        assert run("identity", name, "--help").code == 0
