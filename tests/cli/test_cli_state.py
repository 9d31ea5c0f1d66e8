"""`lightdp state`: what a state file holds and has cost, and how it is given up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lightdp import gaussian
from lightdp._validate import rounded_down, rounded_up
from lightdp.errors import ProtocolError
from lightdp.federation import Kept
from lightdp.protocol import Client, File
from lightdp.protocol.host import Host
from support.command_line import assert_refused
from support.parties import RUN, joined, planned

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The state of a client that has answered two rounds."""
    server, clients = joined(planned(), 4, folder=tmp_path)
    for _ in range(2):
        start = server.announce(since=0)
        for client in clients:
            server.receive(client.begin(start).upload(np.zeros(4)))
        server.close()
    return tmp_path / "client-00.json"


@pytest.fixture
def node(path: Path) -> Path:
    """The state of a Flower node that has spent μ² = 0.25 before."""
    record = {"serial": 9, "client": path.read_text(), "run": RUN.hex(), "plan": "{}", "length": 4, "before": 0.25}
    made = path.with_name("node.json")
    made.touch(mode=0o600)
    made.write_text(json.dumps(record | {"kinds": [["client", "add-remove"]]}))
    return made


def row(page: str, name: str) -> list[str]:
    """The numbers in the last row of this name."""
    return [line.strip().removeprefix(name).split() for line in page.splitlines() if line.strip().startswith(name)][-1]


def test_show_says_run_plan_rounds_and_what_is_spent_and_left(run: Run, path: Path) -> None:
    kept, done = Kept.read(path), run("state", "show", path)
    assert (done.code, done.err) == (0, "")
    assert f"client-00 in run {RUN.hex()}\n" in done.out
    assert f"serial {kept.serial}, saved on this machine\n" in done.out
    assert "clients 5, colluders 1, stragglers 2, rounds 30, calibration repair; ε = 8 at δ = 1e-05" in done.out
    assert row(done.out, "0") == ["5", "2", "1", "0", "0", "1", "0"]
    assert row(done.out, "as announced") == [rounded_up(kept.mu), rounded_up(kept.epsilon)]
    assert row(done.out, "at worst") == [rounded_up(kept.worst_mu), rounded_up(kept.worst_epsilon)]
    assert row(done.out, "budget")[1] == "8.0000"
    assert row(done.out, "left, at worst") == [rounded_down(kept.left_mu), rounded_down(kept.left_epsilon)]
    assert "all runs" not in done.out


def test_a_flower_node_shows_all_its_runs_and_what_its_total_leaves(run: Run, node: Path) -> None:
    kept = Kept.read(node)
    plain = run("state", "show", node).out
    assert row(plain, "earlier runs")[0] == "0.5000"
    spent = (0.25 + kept.worst_mu**2) ** 0.5
    assert row(plain, "together") == [rounded_up(spent), rounded_up(gaussian.epsilon(spent, 1e-5))]
    assert "total" not in plain
    page = run("state", "show", node, "--total-epsilon", 16, "--total-delta", 1e-6).out
    left = (gaussian.mu(16, 1e-6) ** 2 - spent**2) ** 0.5
    assert "ε at δ = 1e-06" in page
    assert row(page, "total")[1] == "16.0000"
    assert row(page, "left")[0] == rounded_down(left)
    assert float(row(page, "left")[1]) == pytest.approx(gaussian.epsilon(left, 1e-6), abs=1.1e-4)


def test_a_total_for_a_file_of_one_run_says_what_it_does_not_count(run: Run, path: Path) -> None:
    page = run("state", "show", path, "--total-epsilon", 16, "--total-delta", 1e-5).out
    assert row(page, "earlier runs") == ["0.0000", "0.0000"]
    assert "This file counts one run" in page


def test_json_has_every_figure(run: Run, node: Path) -> None:
    kept = Kept.read(node)
    found = json.loads(run("state", "show", node, "--json", "--total-epsilon=16", "--total-delta=1e-5").out)
    assert (found["name"], found["run"], found["serial"], found["here"]) == ("client-00", RUN.hex(), kept.serial, True)
    assert found["worst"] == {"mu": kept.worst_mu, "epsilon": kept.worst_epsilon}
    assert found["left"] == {"mu": kept.left_mu, "epsilon": kept.left_epsilon}
    assert found["rosters"][0]["answered"] == 2
    assert found["plan"]["clients"] == 5
    assert found["all_runs"]["left"]["mu"] == kept.left_of(16.0, 1e-5)
    assert found["kinds"] == [["client", "add-remove"]]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_key_is_printed_and_nothing_changed(run: Run, path: Path, more: tuple[str, ...]) -> None:
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    secret = json.loads(path.read_text().splitlines()[0])["pair"]
    done = run("state", "show", path, *more)
    assert secret[:16] not in done.out
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


def test_a_state_of_another_machine_is_shown_as_such(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Host.here()
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: cls("another", None)))
    assert "saved on another machine" in run("state", "show", path).out
    assert json.loads(run("state", "show", path, "--json").out)["here"] is False
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: cls(here.machine or "m", "another boot")))
    if here.machine is not None:
        assert "before it was started last" in run("state", "show", path).out


def test_a_node_that_is_in_no_roster_says_so(run: Run, tmp_path: Path) -> None:
    Client.new(planned(), length=4, run=RUN, name="ann", store=File(tmp_path / "s")).enrol()
    page = run("state", "show", tmp_path / "s").out
    assert "in no roster yet" in page
    assert row(page, "at worst") == ["0.0000", "0.0000"]
    assert row(page, "left, at worst")[1] == "8.0000"


def test_what_cannot_be_shown_is_refused_in_one_line(run: Run, path: Path, tmp_path: Path) -> None:
    assert_refused(run("state", "show", tmp_path / "no"), "PATH must be a state file", "no'")
    assert_refused(run("state", "show", tmp_path), "got the folder", "client-00.json, client-01.json")
    assert_refused(run("state", "show", path, "--total-epsilon", 3), "must be given together")
    assert_refused(
        run("state", "show", path, "--total-epsilon", -3, "--total-delta", 0.1), "total-epsilon must be", "-3"
    )
    assert_refused(run("state", "show", path, "--total-epsilon", 3, "--total-delta", 2), "total-delta must be", "2")
    (tmp_path / "diary").write_text("dear diary")
    (tmp_path / "diary").chmod(0o600)
    assert_refused(run("state", "show", tmp_path / "diary"), "must hold a client's state")
    path.chmod(0o644)
    assert_refused(run("state", "show", path), "mode 0644")
    path.unlink()
    assert_refused(run("state", "show", path), "is lost", "to give it up")


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.mark.parametrize("said", ["", "\n", "n\n", "no\n"])
def test_reset_asks_first(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    answer(monkeypatch, said)
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    done = run("state", "reset", path)
    assert done.code == 2
    assert done.err.endswith("error: nothing was given up: answer y, or say --yes\n")
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


def test_reset_says_what_is_lost_and_a_new_run_may_begin(
    run: Run, node: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept.read(node)
    answer(monkeypatch, "y\n")
    done = run("state", "reset", node)
    assert done.code == 0
    spent = (0.25 + kept.worst_mu**2) ** 0.5
    assert "2 rounds answered" in done.out
    assert f"ε = {rounded_up(gaussian.epsilon(spent, 1e-5))} at δ = 1e-05" in done.out
    assert "in all runs" in done.out
    assert not node.exists()
    assert run("state", "reset", path, "--yes").code == 0
    for command in (["show", path], ["reset", path, "--yes"]):
        refused = run("state", *command)
        assert_refused(refused, "it was given up, and a node begins anew there")
        assert "Errno" not in refused.err
    assert "Errno" not in run("audit", "--client", path).err
    assert not path.exists()
    Client.new(planned(), length=4, run=bytes(16), name="ann", store=File(path)).enrol()


@pytest.mark.parametrize("damage", ["lost", "older", "junk"])
def test_reset_gives_up_what_is_lost_old_or_damaged(run: Run, tmp_path: Path, damage: str) -> None:
    path, anchor = tmp_path / "s", tmp_path / "anchor"
    Client.new(planned(), length=4, run=RUN, name="ann", store=File(path, anchor=anchor)).enrol()
    old = path.read_bytes()
    Client.restore(planned(), length=4, store=File(path, anchor=anchor)).enrol()
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(old if damage == "older" else b"junk")
    done = run("state", "reset", path, "--yes")
    assert done.code == 0
    assert "What this state has spent cannot be said" in done.out
    assert str(anchor) not in done.out.splitlines()[-2]  # it was not named, and so
    with pytest.raises(ProtocolError, match="is lost"):  # it still tells of the state
        Client.new(planned(), length=4, run=bytes(16), name="ann", store=File(path, anchor=anchor)).enrol()
    assert run("state", "reset", path, "--anchor", anchor, "--yes").code == 0
    assert not anchor.exists()
    Client.new(planned(), length=4, run=bytes(16), name="ann", store=File(path, anchor=anchor)).enrol()


def test_reset_removes_no_other_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary")
    done = run("state", "reset", tmp_path / "diary", "--yes")
    assert done.code == 2
    assert "must hold a client's state or be free" in done.err
    assert (tmp_path / "diary").read_text() == "dear diary"
    assert_refused(run("state", "reset", tmp_path / "nothing", "--yes"), "there is no such file")


def test_neither_command_needs_flower_or_torch(path: Path) -> None:
    code = f"""import sys
from lightdp import cli
sys.argv = ["lightdp", "state", "show", {str(path)!r}]
try:
    cli.main()
finally:
    print([name for name in ("flwr", "torch", "altair", "dp_accounting") if name in sys.modules], file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_help_shows_examples(run: Run) -> None:
    page = run("state", "--help").out
    for name in ("show", "reset"):
        assert f"lightdp state {name} " in page
        assert run("state", name, "--help").code == 0
