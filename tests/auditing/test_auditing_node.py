"""`lightdp audit --client`: what a node has spent, from its own state file or from that of a Flower node."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.auditing import node
from lightdp.errors import ArgumentError
from lightdp.federation import Federation
from support.members import played
from support.parties import joined, planned

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.protocol import Client
    from support.command_line import Run


@pytest.fixture
def clients(tmp_path: Path) -> list[Client]:
    """Five clients after rounds that client 0 was used in, late in, that were void, and one that is still open."""
    server, clients = joined(planned(), 4, folder=tmp_path)
    for came in ([0, 1, 2, 3, 4], [1, 2, 3, 4], [0, 1], [0, 1, 2, 3]):
        start = server.announce(since=0)
        for i, client in enumerate(clients):
            message = client.begin(start).upload(np.zeros(4))
            if i in came:
                server.receive(message)
        server.close()
    return clients


def test_a_state_tells_rounds_and_what_they_cost(clients: list[Client], tmp_path: Path) -> None:
    found = node(tmp_path / "client-00.json")
    rounds = {"announced": 3, "answered": 4, "used": 1, "late": 1, "void": 1, "open": 1, "closing": 0}
    assert found.rounds == rounds
    assert found.name == "client-00"
    facts = found.to_dict()
    for name, epsilon in (("announced", clients[0].epsilon()), ("worst", clients[0].epsilon(worst=True))):
        assert facts[name]["epsilon"] == pytest.approx(epsilon, rel=1e-12)
        assert gaussian.epsilon(facts[name]["mu"], 1e-5) == pytest.approx(epsilon)
        assert facts[name]["found"] == pytest.approx(gaussian.power(facts[name]["mu"], 0.01))
    left = math.sqrt(gaussian.mu(8.0, 1e-5) ** 2 - clients[0].mu(worst=True) ** 2)
    assert facts["left"]["mu"] == pytest.approx(left)
    assert facts["left"]["epsilon"] == pytest.approx(gaussian.epsilon(left, 1e-5))
    assert found.holds


def test_under_grace_a_round_waits_for_its_final_set(tmp_path: Path) -> None:
    """Client 0 was used in round 0, too late in round 1, one round late in 2, and on time in 3, whose set is open."""
    server, clients = joined(planned(grace=1), 4, folder=tmp_path)
    late: list[bytes] = []
    for number, came in enumerate(([0, 1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3], [0, 1, 2])):
        start = server.announce(since=0)
        messages = [client.begin(start).upload(np.zeros(4)) for client in clients]
        for i in came:
            server.receive(messages[i])
        if number == 3:
            server.receive(late.pop())
        late.append(messages[0])
        server.close()
    for client in clients:
        client.begin(server.announce(since=0, closing=True)).upload(None)
    found = node(tmp_path / "client-00.json")
    rounds = {"announced": 4, "answered": 4, "used": 2, "late": 1, "void": 0, "open": 1, "closing": 1}
    assert found.rounds == rounds
    assert found.announced.epsilon == pytest.approx(clients[0].epsilon(), rel=1e-12)
    assert found.worst.epsilon == pytest.approx(clients[0].epsilon(worst=True), rel=1e-12)
    said = " ".join(each for each in found.shown() if isinstance(each, str))
    assert "2 used, 1 too late, 0 void, 1 not final yet, and a closing round without data" in said
    assert found.holds


def test_nothing_private_is_printed_and_the_file_is_only_read(clients: list[Client], tmp_path: Path) -> None:
    path = tmp_path / "client-00.json"
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    secret = json.loads(before[path].splitlines()[0])["pair"]
    found = node(path)
    said = json.dumps(found.to_dict()) + "".join(each for each in found.shown() if isinstance(each, str))
    assert secret not in said
    assert secret[:32] not in said
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    assert len(clients) == 5


def test_a_client_that_sent_nothing_has_spent_nothing(tmp_path: Path) -> None:
    joined(planned(), 4, folder=tmp_path)
    found = node(tmp_path / "client-03.json")
    assert (found.announced.mu, found.announced.epsilon, found.worst.epsilon) == (0.0, 0.0, 0.0)
    assert found.rounds["answered"] == 0
    assert "finds at most 1.1 % of those in it" in "".join(each for each in found.shown() if isinstance(each, str))


def test_a_flower_nodes_file_is_read_with_its_earlier_runs(clients: list[Client], tmp_path: Path) -> None:
    state = (tmp_path / "client-01.json").read_text(encoding="utf-8")
    record = {"serial": 9, "client": state, "run": "00", "plan": "{}", "length": 4, "before": 0.49}
    vault = tmp_path / "vault.state"
    vault.touch(mode=0o600)
    vault.write_text(json.dumps(record), encoding="utf-8")
    found = node(vault)
    worst = gaussian.mu(clients[1].epsilon(worst=True), 1e-5)
    assert found.total is not None
    assert found.total.mu == pytest.approx((0.49 + worst**2) ** 0.5)
    assert found.total.epsilon == pytest.approx(gaussian.epsilon(found.total.mu, 1e-5))
    assert found.rounds == node(tmp_path / "client-01.json").rounds


def test_the_file_of_a_real_flower_node_is_read(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from support.flower_talk import Talk  # noqa: PLC0415  needs flwr

    talk, path = Talk(), tmp_path / "node.state"
    talk.grid.nodes[0].config["lightdp-state"] = str(path)
    talk.enrol()
    assert talk.grid.handle(0, talk.start()).has_content()
    found = node(path)
    assert found.plan.digest() == talk.plan.digest()
    assert found.rounds["open"] == 1
    assert 0 < found.worst.epsilon <= talk.plan.budget


def test_an_audit_of_a_node_needs_neither_flwr_nor_torch(clients: list[Client], tmp_path: Path) -> None:
    code = f"""import sys, pathlib
from lightdp.auditing import node
node(pathlib.Path({str(tmp_path / "client-00.json")!r}))
print([name for name in ("flwr", "torch", "altair") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert len(clients) == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"version": 1}', b'{"client": "{}", "before": 0.0}', b"\xff",
     b"[" * 100_000, b'{"client":' * 100_000, b'{"client": "\\ud800", "before": 0}',
     b'{"client": "{}", "before": NaN}'],
)  # fmt: skip
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.state").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"client must be a state file, got client='.*x\.state'"):
        node(tmp_path / "x.state")


def test_an_older_copy_is_refused(clients: list[Client], tmp_path: Path) -> None:
    path = tmp_path / "client-00.json"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ArgumentError, match="an older copy could answer a round again"):
        node(path)
    assert len(clients) == 5


def test_the_command_prints_what_was_spent(run: Run, clients: list[Client], tmp_path: Path) -> None:
    done = run("audit", "--client", tmp_path / "client-00.json")
    assert (done.code, done.err) == (0, "")
    for words in (
        "4 rounds answered of 30 planned: 1 used, 1 too late, 1 void, 1 not",
        "as announced",
        "at worst",
        "left of",
    ):
        assert words in done.out
    missing = run("audit", "--client", tmp_path / "nothing.state")
    assert missing.code == 2
    assert "nothing.state" in missing.err
    assert len(clients) == 5


def play(folder: Path, rounds: int, *, closing: bool, going_on: bool = False, **changed: Any) -> list[Client]:
    """Clients after so many rounds in which everybody was used, and a closing round."""
    server, clients = joined(planned(stragglers=1, rounds=4, **changed), 4, folder=folder)
    kinds = [False] * rounds + [True] * closing + [False] * going_on
    for closes in kinds:
        start = server.announce(since=0, closing=closes)
        for client in clients:
            server.receive(client.begin(start).upload(None if closes else np.zeros(4)))
        server.close()
        server._closing, server._ends = 0, None  # one that goes on
    return clients


@pytest.mark.parametrize("closing", [False, True])
def test_a_node_over_its_budget_does_not_hold_whether_or_not_a_closing_round_followed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closing: bool
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Odometer, "admit", lambda *_: None)
        play(tmp_path, 12, closing=closing)
    found = node(tmp_path / "client-00.json")
    assert not found.holds
    assert found.announced.epsilon > 8.5
    assert found.worst.epsilon > found.announced.epsilon - 1e-9  # not cut down to the budget
    assert found.left.mu == 0.0
    assert found.refused is not None
    done = run("audit", "--client", tmp_path / "client-00.json")
    assert done.code == 1
    assert "as announced exceeds the budget of 8" in done.out
    assert "was answered without room for it" in done.out


def test_a_closing_round_costs_nothing_and_all_that_was_admitted_holds(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir()
    before, clients = play(tmp_path / "open", 3, closing=False), play(tmp_path / "closed", 3, closing=True)
    found, plain = (node(tmp_path / each / "client-00.json") for each in ("closed", "open"))
    assert found.holds
    assert found.announced.epsilon == pytest.approx(clients[0].epsilon(), rel=1e-12)
    assert clients[0].epsilon() < before[0].epsilon()  # where a round is open, at its worst
    assert found.left.mu > plain.left.mu


def test_a_closing_round_after_which_the_server_goes_on_is_left_out(tmp_path: Path) -> None:
    (client, *_) = play(tmp_path, 2, closing=True, going_on=True)
    found = node(tmp_path / "client-00.json")
    assert found.holds
    assert found.announced.epsilon < client.epsilon() * 0.95
    (tmp_path / "without").mkdir()
    (other, *_) = play(tmp_path / "without", 3, closing=False)
    assert found.announced.epsilon == pytest.approx(other.epsilon())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"late": "unseen"}, "at worst, if every upload was seen"),
        ({"unit": "record", "sampling_rate": 0.5}, "at worst, with batches counted as whole"),
        (
            {"unit": "record", "sampling_rate": 0.5, "calibration": "exact"},
            "at worst, for a server that follows the protocol",
        ),
        ({}, "at worst, whatever was announced"),
    ],
)
def test_the_worst_case_is_labelled_by_what_it_supposes(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    (client, *_) = play(tmp_path, 1, closing=False, **changed)
    found = node(tmp_path / "client-00.json")
    assert words in found.figures
    assert found.worst.epsilon == pytest.approx(client.epsilon(worst=True))
    assert found.holds


def test_a_state_that_is_given_as_a_log_is_told_from_one(run: Run, tmp_path: Path) -> None:
    joined(planned(), 4, folder=tmp_path)
    done = run("audit", tmp_path / "client-00.json")
    assert done.code == 2
    assert "got a node's state: say --client" in " ".join(done.err.split())


@pytest.mark.parametrize("changed", [{}, {"calibration": "exact"}, {"grace": 1}])
@pytest.mark.parametrize("rosters", [[3], [2, 1, 2]])
def test_a_member_of_several_rosters_is_counted_again(
    tmp_path: Path, rosters: list[int], changed: dict[str, Any]
) -> None:
    ann = played(tmp_path, rosters, **changed)[0]
    found = node(tmp_path / "ann")
    assert [each.answered for each in found.rosters] == rosters
    assert found.rounds["answered"] == sum(rosters)
    assert found.announced.mu == pytest.approx(ann.mu(), rel=1e-12)
    assert found.announced.epsilon == pytest.approx(ann.epsilon(), rel=1e-12)
    assert found.worst.mu == pytest.approx(ann.mu(worst=True), rel=1e-12)
    assert found.holds
    assert ("in rosters 0, 1, 2" in "".join(each for each in found.shown() if isinstance(each, str))) is (
        rosters != [3]
    )
    assert [each["roster"] for each in found.to_dict()["rosters"]] == list(range(len(rosters)))


def test_rosters_that_a_member_answers_no_more_stay_counted(tmp_path: Path) -> None:
    bob = played(tmp_path, [1] * 6, rounds=60)[1]
    found = node(tmp_path / "bob")
    assert found.rounds["answered"] == 6
    assert found.worst.mu == pytest.approx(bob.mu(worst=True), rel=1e-12)
    said = "".join(each for each in found.shown() if isinstance(each, str))
    assert f"and {found.ended} rounds in earlier ones" in said


def test_a_member_that_is_over_its_budget_in_all_rosters_together_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Odometer, "admit", lambda *_: None)
        broken.setattr(Federation, "exhausted", lambda *_: set())
        played(tmp_path, [4, 4, 4], rounds=6)
    found = node(tmp_path / "bob")
    assert found.refused is None  # each roster alone has room
    assert not found.holds
    assert "as announced exceeds the budget of 8" in found.problems[0]
