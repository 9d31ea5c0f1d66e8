"""The mod alone: a round is answered once, whatever becomes of a node's state, copies and processes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from lightdp import gaussian
from lightdp.flower import _vault
from lightdp.protocol import File
from lightdp.protocol.host import Host
from support.flower_talk import Talk, a_plan, an_app, enrolment, record_of, refused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_repeated_message_is_answered_once() -> None:
    talk = Talk()
    talk.enrol()
    message = talk.start()
    assert talk.grid.handle(0, message).has_content()
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    assert enrolment(talk.key(0)) == enrolment(talk.grid.left[0][1])  # a key round repeated gives the same key


def test_the_log_of_a_node_says_what_an_upload_has_cost(caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk()
    talk.enrol()
    with caplog.at_level("INFO", "flwr"):
        assert talk.grid.handle(0, talk.start()).has_content()
    found = re.search(r"with it at most ε = ([0-9.]+) of 8 at δ = 1e-05 is spent \(μ = ([0-9.]+)\)", caplog.text)
    assert found is not None
    assert gaussian.epsilon(float(found[2]), 1e-5) == pytest.approx(float(found[1]), abs=1e-3)


def test_a_message_that_will_not_be_answered_is_not_trained_for() -> None:
    trainings: list[Any] = []

    def train(weights: Any) -> Any:
        trainings.append(weights)
        return weights

    talk = Talk(an_app(train))
    talk.enrol()
    message = talk.start()
    assert talk.grid.handle(0, message).has_content()
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    assert len(trainings) == 1


def test_an_older_context_does_not_answer_again_while_a_newer_state_is_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for with_file in (True, False):
        talk = Talk()
        if not with_file:
            talk.grid.simulate(monkeypatch)
        talk.enrol()
        message = talk.start()
        assert talk.grid.handle(0, message, keep=False).has_content()  # the context stays as it was before
        assert refused(talk.grid.handle(0, message), "round 0 was answered")


def test_an_older_file_does_not_answer_again_while_the_context_is_newer(tmp_path: Path) -> None:
    talk, path = Talk(), tmp_path / "s.json"
    talk.grid.nodes[0].config["lightdp-state"] = str(path)
    talk.enrol()
    old, message = path.read_bytes(), talk.start()
    assert talk.grid.handle(0, message).has_content()
    path.write_bytes(old)
    assert refused(talk.grid.handle(0, message), "an older copy could answer a round again")
    (tmp_path / "s.json.serial").unlink()
    assert refused(talk.grid.handle(0, message), "an older copy could answer a round again")
    path.unlink()
    assert refused(talk.grid.handle(0, message), "is lost, and with it what this node has spent and answered")


def test_an_older_copy_of_a_whole_folder_is_noticed_by_an_anchor_elsewhere(tmp_path: Path) -> None:
    talk, here, anchor = Talk(), tmp_path / "here", tmp_path / "anchor"
    here.mkdir()
    talk.grid.nodes[0].config |= {"lightdp-state": str(here / "s.json"), "lightdp-anchor": str(anchor)}
    talk.enrol()
    message = talk.start()
    shutil.copytree(here, tmp_path / "copy")
    assert talk.grid.handle(0, message).has_content()
    shutil.rmtree(here)
    shutil.copytree(tmp_path / "copy", here)
    talk.grid.restart(0)
    assert refused(talk.grid.handle(0, message), "an older copy could answer a round again")


def test_a_state_in_the_context_goes_where_flower_takes_it_and_one_in_a_file_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk()
    talk.enrol()
    monkeypatch.setattr(Host, "here", lambda: Host("another machine", None))
    assert refused(talk.grid.handle(0, talk.start()), "the state was saved on another machine")
    monkeypatch.undo()
    talk = Talk()
    talk.grid.simulate(monkeypatch)
    talk.enrol()
    monkeypatch.setattr(Host, "here", lambda: Host("another machine", None))
    assert talk.grid.handle(1, talk.start()).has_content()


@pytest.mark.parametrize("named", [True, False])
def test_a_copy_of_another_nodes_state_answers_no_round_of_its_run(named: Any, tmp_path: Path) -> None:
    talk, paths = Talk(), [tmp_path / name for name in ("ann.json", "bob.json", "cem.json")]
    for node, path in zip(talk.grid.nodes, paths, strict=True):
        node.config |= {"lightdp-state": str(path)} | ({"lightdp-name": path.stem} if named else {})
    talk.enrol()
    talk.mean()
    paths[1].write_bytes(paths[0].read_bytes())
    (tmp_path / "bob.json.serial").unlink()
    talk.grid.restart(1)
    assert refused(talk.grid.handle(1, talk.start()), "the state has begun this run in another file")
    assert talk.grid.handle(0, talk.start()).has_content()
    talk.grid.nodes[1].config["lightdp-state"] = str(paths[0])  # the same path, as in two containers
    for reply in (talk.grid.handle(1, talk.start()), talk.key(1)) if named else ():
        assert refused(reply, "the state is that of ann in this run, and lightdp-name is bob")


def test_a_state_that_was_moved_joins_the_next_run_which_counts_what_was_spent(tmp_path: Path) -> None:
    talk, old, new = Talk(), tmp_path / "old.json", tmp_path / "new.json"
    node = talk.grid.nodes[0]
    node.config["lightdp-state"] = str(old)
    talk.enrol()
    talk.mean()
    old.rename(new)
    node.config["lightdp-state"] = str(new)
    talk.grid.restart(0)
    assert refused(talk.key(0), "the state has begun this run in another file")
    assert talk.key(0, run=b"the run after it").has_content()
    record = record_of(new)
    assert record["before"] > 0
    assert (record["path"], record["layout"]) == (str(new), None)


def test_a_node_without_a_name_keeps_that_of_its_first_id(tmp_path: Path) -> None:
    talk = Talk()
    talk.grid.nodes[0].config["lightdp-state"] = str(tmp_path / "s.json")
    talk.enrol()
    first = enrolment(talk.key(0))
    for fresh in (False, True):
        talk.grid.fresh, talk.grid.nodes[0].id = fresh, talk.grid.nodes[0].id + 1
        assert enrolment(talk.key(0)) == first


def test_a_state_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    talk, path = Talk(), tmp_path / "s.json"
    talk.grid.nodes[0].config["lightdp-state"] = str(path)
    path.touch(mode=0o600)
    for junk in ("precious", "{}", "[]", '{"serial": "1", "client": ""}', "[" * 200_000):
        path.write_text(junk)
        assert refused(talk.key(0), "holds something that is no state")
        assert path.read_text() == junk
    path.unlink()
    talk.grid.nodes[0].state = RecordDict({"lightdp": ConfigRecord({"state": "text"})})
    assert refused(talk.key(0), "holds something that is no state")


def test_nothing_leaves_if_the_state_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    talk.grid.nodes[0].config["lightdp-state"] = str(tmp_path / "s.json")
    talk.enrol()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(File, "append", full)
        assert talk.grid.handle(0, talk.start()).has_error()
    assert talk.grid.handle(0, talk.start()).has_content()


@pytest.mark.parametrize("with_file", [True, False])
def test_of_many_copies_handled_at_the_same_time_one_is_answered(
    with_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(an_app(), a_plan(rounds=100))
    if not with_file:
        talk.grid.simulate(monkeypatch)
    talk.enrol()
    for _ in range(5):
        message, together = talk.start(), threading.Barrier(4)

        def copy(_: int, message: Message = message, together: threading.Barrier = together) -> Message:
            return talk.grid.handle(0, message, keep=False, together=together)

        with ThreadPoolExecutor(4) as pool:
            answers = [each for each in pool.map(copy, range(4)) if each.has_content()]
        assert len(answers) == 1
        talk.server.receive(answers[0].content.array_records["arrays"]["lightdp"].numpy().tobytes())
        talk.server.close()


_HOLD = """
import sys
from pathlib import Path
from flwr.app import Context, RecordDict
from lightdp.flower import _vault
with _vault.opened(Context(1, 2, {}, RecordDict(), {}), Path(sys.argv[1])):
    print("taken", flush=True)
    sys.stdin.readline()
"""


def test_another_process_waits_for_the_lock(tmp_path: Path) -> None:
    path, entered = tmp_path / "s.json", threading.Event()
    command = [sys.executable, "-W", "ignore", "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"

        def enter() -> None:
            with _vault.opened(Context(1, 2, {}, RecordDict(), {}), path):
                entered.set()

        here = threading.Thread(target=enter)
        here.start()
        assert not entered.wait(0.2)
        other.communicate("go\n")
        here.join()
    assert entered.is_set()
