from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightdp.auditing._said import of_config
from lightdp.runlog import RunLog
from support.audited_logs import a_plan, lines_of


@pytest.mark.parametrize(
    ("scheme", "calibration", "fits"),
    [("auto", "repair", True), ("auto", "exact", True), ("auto", "local", False), ("exact", "repair", False)],
)
def test_the_scheme_of_a_log_is_that_of_its_plan_or_auto(
    tmp_path: Path, scheme: str, calibration: str, fits: bool
) -> None:
    plan, path = a_plan(calibration, late="unseen"), tmp_path / "run.jsonl"
    lines = lines_of(plan, [(list(range(8)), [])], scheme=scheme)
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    problems = [] if fits else [f"config: scheme = '{scheme}' is not the plan's, 'another one'"]
    assert [*of_config(RunLog.read(path), plan)] == problems
