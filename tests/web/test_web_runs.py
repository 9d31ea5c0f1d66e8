"""Logs of a folder: their figures, tables, metrics and audits."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette")

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lightdp import auditing, gaussian
from lightdp.errors import ArgumentError
from lightdp.runlog import Follower, RunLog
from lightdp.web._audited import audited
from lightdp.web._metrics import exposed
from lightdp.web._state import figures, rows
from support.asked import BASE, BEARER, Asked
from support.audited_logs import a_plan, lines_of, some_rounds
from support.run_logs import Lines, logged, written

if TYPE_CHECKING:
    from pathlib import Path

OWN = BEARER | {"origin": BASE}


def followed(path: Path) -> Follower:
    found = Follower(path)
    found.look()
    return found


def test_figures_are_those_of_the_log(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", logged())
    log, found = RunLog.read(path), figures("a.jsonl", followed(path), model=False)
    for name in ("accuracy", "epsilon", "mu", "delta", "unit", "noise", "exceeds"):
        assert found[name] == getattr(log, name), name
    assert (found["status"], found["rounds"], found["budget"]) == ("finished", 7, 3.0)
    assert found["mu_budget"] == gaussian.mu(3.0, 1e-5)
    assert found["uploads"] == {"used": 58, "next": 0, "late": 4, "void": 0, "lost": 8}
    assert float(found["epsilon_text"]) >= log.epsilon  # type: ignore[operator]


def test_a_run_whose_features_no_epsilon_covers_is_called_not_private(tmp_path: Path) -> None:
    lines = logged()
    assert figures("a.jsonl", followed(written(tmp_path / "a.jsonl", lines)), model=False)["not_private"] == []
    lines[0]["config"]["columns"] = "statistics"
    (sentence,) = figures("b.jsonl", followed(written(tmp_path / "b.jsonl", lines)), model=False)["not_private"]
    assert sentence.startswith("NOT PRIVATE: ")


@pytest.mark.parametrize(("age", "status"), [(0, "running"), (3600, "quiet")])
def test_a_log_without_an_end_is_running_while_it_is_written(tmp_path: Path, age: int, status: str) -> None:
    path = written(tmp_path / "a.jsonl", logged()[:-1])
    os.utime(path, (time.time() - age, time.time() - age))
    assert figures("a.jsonl", followed(path), model=False)["status"] == status


def test_a_damaged_log_is_shown_with_its_line(tmp_path: Path) -> None:
    lines = logged()
    lines[3]["accuracy"] = 7
    written(tmp_path / "a.jsonl", lines)
    (run,) = Asked(tmp_path).get("/api/runs", headers=BEARER).json()["runs"]
    assert (run["status"], run["rounds"]) == ("damaged", 2)
    assert "line 4: accuracy must be in [0, 1], got accuracy=7" in run["error"]


def grace() -> Lines:
    """Of four late uploads of round 2, three are in the sum of round 3."""
    lines = logged(rounds=4)[:-1]
    for line in lines[1:]:
        line |= {"used": 6, "late": 4, "lost": 0, "joined": 0, "joined_clients": []}
        line |= {"late_clients": [0, 1, 2, 3], "lost_clients": []}
    lines[3] |= {"joined": 3, "joined_clients": [0, 1, 2]}
    return lines


def test_a_line_that_says_what_became_of_earlier_uploads_gives_that_round_again(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", grace())
    log = RunLog.read(path)
    again = {row["round"]: row for row in rows(log, 3)}
    assert {2, 3, 4} <= set(again)
    assert (again[2]["next"], again[2]["late"]) == (3, 1)
    assert [row["round"] for row in rows(RunLog.read(written(path, logged()[:-1])), 6)] == [6, 7]


def test_the_table_of_rounds_is_the_log(tmp_path: Path) -> None:
    lines = logged()
    lines[1]["metrics"] = {"=cmd()": 1.5, "word": "=1+1"}
    written(tmp_path / "a.jsonl", lines)
    reply = Asked(tmp_path).get("/runs/csv?run=a.jsonl", headers=BEARER)
    assert reply.headers["content-disposition"] == 'attachment; filename="a.csv"'
    found = list(csv.DictReader(io.StringIO(reply.text)))
    assert [float(row["epsilon"]) for row in found] == [line["epsilon"] for line in lines[1:-1]]
    assert [row["accuracy"] for row in found[:2]] == ["", str(lines[2]["accuracy"])]
    assert (found[0]["'=cmd()"], found[0]["word"]) == ("1.5", "'=1+1")
    log = Asked(tmp_path).get("/runs/log?run=a.jsonl", headers=BEARER)
    assert log.content == (tmp_path / "a.jsonl").read_bytes()


def parsed(text: str) -> dict[str, Metric]:
    """Families by name, as Prometheus's own parser reads them."""
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def test_metrics_are_openmetrics_with_the_figures_of_each_run(tmp_path: Path) -> None:
    written(tmp_path / 'a"b\\.jsonl', logged())
    written(tmp_path / "going.jsonl", logged("exact")[:-2])
    reply = Asked(tmp_path).get("/metrics", headers=BEARER)
    assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert reply.text.endswith("\n# EOF\n")
    families = parsed(reply.text)
    assert families["lightdp_run_accuracy_ratio"].unit == "ratio"
    assert families["lightdp_run_changed_timestamp_seconds"].unit == "seconds"
    assert families["lightdp_run_uploads"].type == "counter"
    assert all(family.documentation for family in families.values())

    def values(name: str) -> dict[str, float]:
        return {sample.labels["run"]: sample.value for sample in families[name].samples}

    odd = 'a"b\\.jsonl'
    assert odd not in values("lightdp_run_ended")  # a backslash is in no name that is served
    assert values("lightdp_run_ended") == {"going.jsonl": 0.0}
    assert values("lightdp_run_epsilon")["going.jsonl"] == RunLog.read(tmp_path / "going.jsonl").epsilon
    used = {s.labels["fate"]: s.value for s in families["lightdp_run_uploads"].samples}
    assert used["on_time"] == sum(line.used for line in RunLog.read(tmp_path / "going.jsonl").rounds)


def test_labels_of_metrics_are_escaped() -> None:
    run = dict.fromkeys(
        ("total", "accuracy", "loss", "epsilon", "budget", "mu", "mu_budget", "noise", "left", "changed", "scheme",
         "data", "model_name", "unit", "adjacency", "delta")
    )  # fmt: skip
    run |= {
        "name": 'a"\n\\',
        "rounds": 1,
        "status": "running",
        "uploads": dict.fromkeys(("used", "next", "late", "void", "lost"), 0),
    }
    families = parsed(exposed([run], "1"))
    assert families["lightdp_run_rounds"].samples[0].labels == {"run": 'a"\n\\'}


def test_the_audit_is_that_of_the_command(tmp_path: Path) -> None:
    plan = a_plan()
    path = written(tmp_path / "a.jsonl", lines_of(plan, some_rounds(plan, 8)))
    found = Asked(tmp_path).post("/api/audit?run=a.jsonl", headers=OWN).json()
    assert found["holds"] is True
    assert found == json.loads(json.dumps(auditing.recorded(path).to_dict()))
    lines = lines_of(plan, some_rounds(plan, 8))
    lines[-1]["epsilon"] /= 2
    written(path, lines)
    assert Asked(tmp_path).post("/api/audit?run=a.jsonl", headers=OWN).json()["holds"] is False


def test_a_log_that_contradicts_itself_does_not_stand_its_audit(tmp_path: Path) -> None:
    lines = logged()
    del lines[3]
    written(tmp_path / "a.jsonl", lines)
    found = Asked(tmp_path).post("/api/audit?run=a.jsonl", headers=OWN).json()
    assert found["holds"] is False
    assert Asked(tmp_path).get("/api/audit?run=a.jsonl", headers=OWN).status_code == 405


def test_an_audit_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", logged())
    with pytest.raises(ArgumentError, match=r"more than 0\.01 s"):
        asyncio.run(audited(path, limit=0.01))


def test_what_a_log_says_is_never_markup(tmp_path: Path) -> None:
    lines = logged()
    lines[0]["config"]["data"] = "<script>alert(1)</script>"
    name = "<img src=x onerror=alert(1)>.jsonl"
    written(tmp_path / name, lines)
    asked = Asked(tmp_path)
    page = asked.get("/runs/view", params={"run": name}, headers=BEARER).text
    assert "<img" not in page
    assert asked.get("/runs/log", params={"run": name}, headers=BEARER).status_code == 200


def test_the_report_of_runs_asks_for_nothing_and_keeps_out_of_the_other_pages(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", logged())
    written(tmp_path / "b.jsonl", logged("exact"))
    reply = Asked(tmp_path).get("/runs/report?run=a.jsonl&run=b.jsonl", headers=BEARER)
    assert "2 runs compared" in reply.text
    assert "sandbox allow-scripts" in reply.headers["content-security-policy"]
    assert "connect-src" not in reply.headers["content-security-policy"]


def test_folders_that_cannot_be_shown_and_too_many_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="FOLDER must be a folder"):
        Asked(tmp_path / "none")
    query = "&".join(f"run={k}.jsonl" for k in range(9))
    assert Asked(tmp_path).get(f"/runs/view?{query}", headers=BEARER).status_code == 404
