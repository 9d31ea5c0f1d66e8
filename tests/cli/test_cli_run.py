from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightdp.training import step
from support.command_line import assert_refused
from support.run_logs import logged, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.training.checkpoint import State
    from lightdp.training.config import Config
    from support.command_line import Run

QUICK = ["--clients", "6", "--colluders", "1", "--stragglers", "1", "--rounds", "4", "--epsilon", "50"]


def test_a_run_prints_its_plan_and_table_and_writes_log_and_page(tmp_path: Path, run: Run) -> None:
    done = run("run", *QUICK, "--out", tmp_path / "a.jsonl")
    assert done.code == 0
    for part in (
        "digits, linear with 650 parameters",
        "6 clients, iid: records 239 to 240 (median 240), different labels 10 to 10 (median 10)",
        "Guarantee",
        "test accuracy",
        "lasting noise std a round",
        "up, client and round",
    ):
        assert part in done.out
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", *["round"] * 4, "end"]
    assert f"{100 * lines[-1]['accuracy']:.2f} %" in done.out
    assert (tmp_path / "a.html").read_text().lower().startswith("<!doctype html>")


def test_a_run_under_grace_says_what_became_of_the_uploads(tmp_path: Path, run: Run) -> None:
    options = ["--arrivals", "latency:1:0.5:1.5", "--grace", "1", "--late", "0.1", "--no-report"]
    done = run("run", *QUICK, *options, "--out", tmp_path / "a.jsonl")
    assert done.code == 0
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert (lines[0]["plan"]["grace"], lines[0]["plan"]["late"]) == (1, 0.1)
    uploads, used, joined = 6 * len(lines[1:-1]), sum(line["used"] for line in lines[1:-1]), lines[2:]
    late = sum(line["joined"] for line in joined)
    assert late > 0
    assert f"Uploads: {used / uploads:.1%} on time, {late / uploads:.1%} entered the model one round late, " in done.out
    assert "Uploads" not in run("run", *QUICK, "--no-report", "--out", tmp_path / "b.jsonl").out


@pytest.mark.parametrize(
    ("flags", "advised"), [(["--late-seen", "1", "--late", "0"], True), (["--late-seen", "1"], False)]
)
def test_a_run_that_late_uploads_end_says_what_helps(tmp_path: Path, run: Run, flags: list[str], advised: bool) -> None:
    many = ["--rounds", "60", "--stragglers", "2", "--epsilon", "3", "--scheme", "repair", "--evaluate-every", "60"]
    done = run("run", *QUICK, *many, *flags, "--no-report", "--out", tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    used = [line["used"] for line in lines[1:-1]]
    late = sum(line["late"] for line in lines[1:-1] if line["used"] > 0)
    assert (lines[-1]["stopped"] == "budget") is advised
    assert f"Uploads: {sum(used) / len(used) / 6:.1%} on time, {late / len(used) / 6:.1%} too late" in done.out
    assert ("Late uploads used up budgets: --grace 1 would use" in done.out) is advised


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--grace", "2"], "grace must be"),
        (["--late", "often"], "late must be a share in [0, 1] or 'unseen', got late='often'"),
        (["--late-by-one", "2"], "late_by_one must be in [0, 1], got late_by_one=2"),
        (["--scheme", "smpc", "--grace", "1"], "grace must be 0 for scheme='smpc'"),
        (["--late-seen", "1", "--late", "unseen"], "late_seen=1, got late='unseen'"),
        (["--arrivals", "none", "--late-by-one", "0.5"], "late_by_one must be 0 with arrivals='none'"),
    ],
)
def test_wrong_settings_of_late_uploads_are_refused(tmp_path: Path, run: Run, flags: list[str], message: str) -> None:
    assert_refused(run("run", *QUICK, *flags, "--out", tmp_path / "a.jsonl"), message)


def test_cohorts_and_churn_are_flags_and_are_said(tmp_path: Path, run: Run) -> None:
    members = ["--population", "20", "--churn", "0.05:0.2", "--patience", "2", "--least", "5", "--consecutive", "2"]
    done = run("run", *QUICK, *members, "--no-report", "--out", tmp_path / "a.jsonl")
    assert done.code == 0
    for part in ("20 clients in 3 rosters that take turns, iid", "population", "rosters formed", "ε by client"):
        assert part in done.out
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["roster"] for line in lines[1:-1]] == [0, 0, 1, 1]
    assert len(lines[-1]["epsilon_clients"]) == 20
    assert "since members that are away count as stragglers" not in done.out
    often = run("run", *QUICK, *members, "--churn", "0.6:0.4", "--no-report", "--out", tmp_path / "c.jsonl")
    assert "of 4 rounds had too few uploads, since members that are away count as stragglers" in often.out
    refused = run("run", *QUICK, "--churn", "2:1", "--out", tmp_path / "b.jsonl")
    assert_refused(refused, "churn must be LEAVE:JOIN, two probabilities in [0, 1], got churn='2:1'")


def test_flags_win_over_the_file_and_json_is_the_last_line(tmp_path: Path, run: Run) -> None:
    (tmp_path / "run.toml").write_text('scheme = "local"\nepsilon = 9.0\nmodel = "linear"\n')
    options = ["--config", tmp_path / "run.toml", *QUICK, "--no-report", "--json", "--out", tmp_path / "a.jsonl"]
    done = run("run", *options)
    first = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert done.code == 0
    assert (first["config"]["scheme"], first["config"]["epsilon"]) == ("local", 50.0)
    assert json.loads(done.out)["kind"] == "end"
    assert not (tmp_path / "a.html").exists()


def test_a_run_with_sampled_batches_that_is_looked_at_seldom_has_a_table(tmp_path: Path, run: Run) -> None:
    options = ["--sampling-rate", "0.5", "--evaluate-every", "4", "--no-report", "--out", tmp_path / "a.jsonl"]
    done = run("run", *QUICK, *options)
    assert done.code == 0
    assert "ε true, largest client" in done.out


def test_a_finished_run_can_be_resumed_and_ends_the_same(tmp_path: Path, run: Run) -> None:
    options = [*QUICK, "--no-report", "--json", "--out", tmp_path / "a.jsonl"]
    before = json.loads(run("run", *options).out)
    after = json.loads(run("run", *options, "--resume").out)
    assert before["rounds"] == after["rounds"] == 4
    assert before["epsilon"] == after["epsilon"]


def test_an_interrupted_run_is_not_overwritten_but_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    options = ["run", *QUICK, "--no-report", "--out", tmp_path / "a.jsonl"]
    with monkeypatch.context() as patched:
        patched.setattr(step, "stepped", interrupt_after(2, step.stepped))
        stopped = run(*options)
    assert stopped.code == 130
    assert "interrupted after round 2; the same command with --resume goes on\n" in stopped.err
    left = (tmp_path / "a.jsonl").read_bytes(), (tmp_path / "a.checkpoint").read_bytes()
    assert_refused(run(*options), "out must be new: it is of an interrupted run; --resume goes on with that")
    assert ((tmp_path / "a.jsonl").read_bytes(), (tmp_path / "a.checkpoint").read_bytes()) == left
    assert run(*options, "--resume").code == 0
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert kinds == ["run", *["round"] * 4, "end"]
    assert_refused(run(*options), "out must be new: it has the 4 rounds of a finished run; --overwrite starts anew")
    assert run(*options, "--overwrite").code == 0


@pytest.mark.parametrize("text", [b"", b"no log\n", b'{"kind": "run", "con', "torn"])
def test_what_is_left_of_a_killed_run_is_not_overwritten(tmp_path: Path, run: Run, text: bytes | str) -> None:
    out = written(tmp_path / "a.jsonl", logged()[:3])
    out.write_bytes(text if isinstance(text, bytes) else out.read_bytes() + b'{"kind": "rou')
    out.with_suffix(".checkpoint").touch()
    before = out.read_bytes()
    assert_refused(run("run", *QUICK, "--out", out), "out must be new: it is of an interrupted run")
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".jsonl", "out must be new: it is no log"),
        (".checkpoint", "out must be new: it is of an interrupted run"),
        (".html", "page must be a new file: --overwrite replaces it, got page="),
    ],
)
def test_no_file_of_the_users_is_overwritten_unless_that_is_said(
    tmp_path: Path, run: Run, suffix: str, message: str
) -> None:
    out, notes = tmp_path / "a.jsonl", tmp_path / f"a{suffix}"
    notes.write_text("my notes")
    assert_refused(run("run", *QUICK, "--out", out), message)
    assert [path.name for path in tmp_path.iterdir()] == [notes.name]
    assert notes.read_text() == "my notes"
    assert run("run", *QUICK, "--out", out, "--overwrite").code == 0
    assert "my notes" not in notes.read_text(errors="replace")


def test_a_run_that_replaces_files_goes_on_by_the_same_command_with_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    out, model = tmp_path / "a.jsonl", tmp_path / "a.safetensors"
    model.write_text("an old one")
    options = ["run", *QUICK, "--rounds", "6", "--no-report", "--overwrite", "--out", out, "--save-model", model]
    with monkeypatch.context() as patched:
        patched.setattr(step, "stepped", interrupt_after(2, step.stepped))
        assert run(*options).code == 130
    before = out.read_bytes()
    assert model.read_text() == "an old one"
    assert run(*options, "--resume").code == 0
    assert out.read_bytes().startswith(before)
    assert len(model.read_bytes()) > 100


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_page_that_somebody_else_wrote_is_refused_before_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, overwrite: list[str]
) -> None:
    out, page = tmp_path / "a.jsonl", tmp_path / "a.html"
    with monkeypatch.context() as patched:
        patched.setattr(step, "stepped", interrupt_after(2, step.stepped))
        assert run("run", *QUICK, "--out", out).code == 130
    page.write_text("my notes")
    before = out.read_bytes()
    refused = run("run", *QUICK, "--out", out, "--resume", *overwrite)
    assert_refused(refused, "page must be new, or a page or picture of lightdp")
    assert (page.read_text(), out.read_bytes()) == ("my notes", before)


def test_an_old_page_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    out, page = tmp_path / "a.jsonl", tmp_path / "a.html"
    assert run("run", *QUICK, "--out", out).code == 0
    before = page.read_bytes()

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightdp.report._page.run_page", full)
    done = run("run", *QUICK, "--out", out, "--overwrite")
    assert done.code == 2
    assert done.err.endswith(f"error: page must be writable, got page='{page}': No space left on device\n")
    assert page.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.checkpoint", "a.html", "a.jsonl"]


@pytest.mark.parametrize("options", [["--overwrite"], ["--resume"], ["--resume", "--overwrite"]])
def test_a_folder_in_the_place_of_the_page_is_refused_before_data_is_read(
    tmp_path: Path, run: Run, options: list[str]
) -> None:
    page = tmp_path / "a.html"
    page.mkdir()
    refused = run("run", "--data", "missing.npz", "--out", tmp_path / "a.jsonl", *options)
    assert_refused(refused, f"page must be writable, got page='{page}'")


@pytest.mark.parametrize(
    ("name", "option"), [("a.jsonl", "out"), ("a.html", "page"), ("a.pt", "save_model"), ("", "out")]
)
def test_files_and_folders_that_may_not_be_written_are_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, name: str, option: str
) -> None:
    if name:
        (tmp_path / name).touch()
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path / name)
    files = ["--out", tmp_path / "a.jsonl", "--save-model", tmp_path / "a.pt"]
    refused = run("run", "--data", "missing.npz", "--overwrite", *files)
    assert_refused(refused, f"{option} must be writable, got {option}=")


KILLED = """
import os, signal, sys
from lightdp import cli
from lightdp.training import step
real = step.stepped

def stepped(config, old, *given, **more):
    if old.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(config, old, *given, **more)

step.stepped = stepped
cli.main()
"""


def test_a_run_killed_before_its_first_minute_says_how_to_go_on_and_does(tmp_path: Path, run: Run) -> None:
    options, out = ["run", *QUICK, "--rounds", "6", "--no-report", "--out"], tmp_path / "a.jsonl"
    assert run(*options, tmp_path / "whole.jsonl").code == 0
    killed = subprocess.run([sys.executable, "-c", KILLED, *options, str(out)], capture_output=True, check=False)
    assert killed.returncode == -9
    before = out.read_bytes()
    assert before.count(b'"kind": "round"') == 3
    assert_refused(run(*options, out), "out must be new: it is of an interrupted run; --resume goes on with that")
    assert out.read_bytes() == before
    assert run(*options, out, "--resume").code == 0
    assert out.read_bytes().startswith(before)
    texts = [file.read_text().splitlines()[:-1] for file in (out, tmp_path / "whole.jsonl")]
    assert texts[0] == texts[1]


def test_a_run_with_real_noise_cannot_go_on_and_says_so_but_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    out = ["--no-report", "--out", tmp_path / "a.jsonl"]
    with monkeypatch.context() as patched:
        patched.setattr(step, "stepped", interrupt_after(2, step.stepped))
        stopped = run("run", *QUICK, *out, "--fidelity", "protocol")
        assert stopped.code == 130
        assert "real noise cannot be made again, so this run cannot go on" in stopped.err
        assert not (tmp_path / "a.checkpoint").exists()  # nothing can go on from it
        refused = run("run", *QUICK, *out)
        assert_refused(
            refused, "it is of an interrupted run with real noise, which cannot go on; --overwrite starts anew"
        )
        assert run("run", *QUICK, *out, "--overwrite").code == 130
    assert_refused(run("run", *QUICK, *out, "--fidelity", "protocol"), "out must be new: it is of an interrupted run")


def test_being_asked_to_terminate_is_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    many = ["--rounds", "1000000", "--no-report", "--out", str(out)]
    script = str(Path(sys.executable).with_name("lightdp"))
    with subprocess.Popen([script, "run", *QUICK, *many], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (out.exists() and b'"round": 3' in out.read_bytes()):
            time.sleep(0.05)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"the same command with --resume goes on" in err
    assert out.with_suffix(".checkpoint").exists()


def interrupt_after(rounds: int, real: Callable[..., State]) -> Callable[..., State]:
    """A step as it is for so many rounds, and then Ctrl-C."""

    def stepped(config: Config, old: State, *given: Any, **more: Any) -> State:
        if old.round == rounds:
            raise KeyboardInterrupt
        return real(config, old, *given, **more)

    return stepped


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "nothing"], "data must be"),
        (["--lr", "1e300"], "lr must be <= 1e+38, got lr=1e+300"),
        (["--data", "missing.npz"], "missing.npz"),
        (["--model", "perceptron"], "perceptron"),
        (["--clients", "3", "--colluders", "3"], "colluders must be in 0..2, got colluders=3"),
        (["--epsilon", "nan"], "epsilon must be finite"),
        (["--epochs", "5"], "epochs needs unit='client' or 'paper'"),
        (["--resume"], "resume needs the checkpoint"),
        (["--config", "absent.toml"], "config must be a readable TOML file"),
        (["--out", "absent/run.jsonl"], "out must be a .jsonl file in an existing folder"),
        (["--out", "."], "out must be a .jsonl file in an existing folder, got out='.'"),
        (["--partition", "dirichlet:x"], "dirichlet"),
        (["--arrivals", "maybe"], "maybe"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("run", *options), words)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_log_is_refused_before_data_is_read(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "a.jsonl"
    out.mkdir()
    assert_refused(run("run", "--data", "missing.npz", "--out", out), f"out must be writable, got out='{out}'")


# the model, and weights to begin with


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_model_is_kept_and_another_run_begins_with_it(tmp_path: Path, run: Run, suffix: str) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    model, first, second = tmp_path / f"model{suffix}", tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    done = run("run", *QUICK, "--no-report", "--out", first, "--save-model", model)
    assert done.code == 0
    assert f"wrote {first} and {model}" in done.out
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    again = run("run", *QUICK, "--no-report", "--out", second, "--start", model, "--lr", "1e-9")
    assert f"starts from {model} (SHA-256 {digest[:12]})\n" in again.out
    assert f"It began with the weights of {model}: what these reveal of anybody is not counted here." in again.out
    ended, started = (json.loads(path.read_text().splitlines()[at]) for path, at in ((first, -1), (second, 0)))
    assert started["start"] == {"file": str(model), "digest": digest, "new": [], "unused": []}
    assert json.loads(second.read_text().splitlines()[-1])["accuracy"] == ended["accuracy"]  # nothing was learned since
    assert run("audit", second).code == 0


def test_a_model_is_kept_of_a_run_that_was_resumed_and_never_over_another(tmp_path: Path, run: Run) -> None:
    options = ["run", *QUICK, "--no-report", "--json", "--out", tmp_path / "a.jsonl"]
    assert run(*options, "--save-model", tmp_path / "model.pt").code == 0
    before = (tmp_path / "model.pt").read_bytes()
    refused = run(*options, "--resume", "--save-model", tmp_path / "model.pt")
    assert_refused(refused, "save_model must be a new file: --overwrite replaces it", str(tmp_path / "model.pt"))
    assert (tmp_path / "model.pt").read_bytes() == before
    assert run(*options, "--resume", "--save-model", tmp_path / "again.pt").code == 0
    first, again = (torch.load(tmp_path / name, weights_only=True) for name in ("model.pt", "again.pt"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--save-model", "model.h5"], "save_model must be a .safetensors or .pt file in an existing folder"),
        (["--save-model", "absent/model.pt"], "save_model must be a .safetensors or .pt file in an existing folder"),
        (["--save-model", "."], "save_model must be a .safetensors or .pt file"),
        (
            ["--start", "model.onnx"],
            "start must be a file whose name ends in .safetensors or .pt, got start='model.onnx'",
        ),
        (["--start", "absent.pt"], "start must be a readable file, got start='absent.pt': No such file"),
    ],
)
def test_wrong_files_of_weights_end_in_one_line_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("run", *QUICK, *options), words)
    assert list(tmp_path.iterdir()) == []


def test_without_safetensors_a_run_says_so_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    refused = run("run", *QUICK, "--out", tmp_path / "a.jsonl", "--save-model", tmp_path / "model.safetensors")
    assert_refused(refused, "a .safetensors file needs an extra; from a clone: pip install '.[train]'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("graph", ["random:4", "auto", "circulant:2:7", "circulant:x", ""])
def test_a_graph_that_a_run_cannot_have_is_refused_with_what_it_can(graph: str, tmp_path: Path, run: Run) -> None:
    done = run("run", *QUICK, "--graph", graph, "--out", tmp_path / "a.jsonl")
    assert_refused(
        done, "graph must be complete or circulant:DEGREE for lightdp run; random graphs are in lightdp plan"
    )
    assert done.err.endswith(f"got graph={graph!r}\n")
    assert not (tmp_path / "a.jsonl").exists()


def test_the_graph_of_a_run_is_its_degree(tmp_path: Path, run: Run) -> None:
    for graph, degree in (("complete", None), ("circulant:4", 4)):
        out = tmp_path / f"{degree}.jsonl"
        assert run("run", *QUICK, "--graph", graph, "--out", out).code == 0
        assert json.loads(out.read_text().splitlines()[0])["config"]["degree"] == degree
    (tmp_path / "run.toml").write_text("degree = 4\n")
    for flags, degree in (((), 4), (("--graph", "complete"), None)):  # flags win over the file
        out = tmp_path / f"{degree}-toml.jsonl"
        assert run("run", *QUICK, "--config", tmp_path / "run.toml", *flags, "--out", out).code == 0
        assert json.loads(out.read_text().splitlines()[0])["config"]["degree"] == degree
    assert run("run", *QUICK, "--degree", "4", "--out", tmp_path / "b.jsonl").code == 2


def test_a_finished_run_that_is_resumed_says_that_it_was_finished(tmp_path: Path, run: Run) -> None:
    options = ["run", *QUICK, "--no-report", "--out", tmp_path / "a.jsonl"]
    assert run(*options).out.endswith(f"\nwrote {tmp_path / 'a.jsonl'}\n")
    assert run(*options, "--resume").out.endswith(f"\n{tmp_path / 'a.jsonl'} was already finished; wrote nothing\n")
