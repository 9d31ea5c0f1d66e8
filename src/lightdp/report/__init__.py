"""Pictures and pages of plans, runs and audits: HTML that needs nothing else, PNG or SVG.

`plan_chart` draws a plan, `audit_chart` an audit; `run_chart`, `run_table` and `caveats` show logs of runs
(`lightdp.runlog.RunLog`) side by side, and `uploads` says what became of the uploads of one. `save` writes a chart,
`save_runs` the page of runs and `save_audit` that of an audit; `check_path` refuses, before any work, a path to which
they could not write. `LOOK` is the configuration of our charts. Needs the extra `report`.

>>> import lightdp, lightdp.report, pathlib, tempfile
>>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=9, epsilon=3, delta=1e-5)
>>> file = pathlib.Path(tempfile.mkdtemp()) / "plan.svg"
>>> lightdp.report.save(lightdp.report.plan_chart(plan), file)
>>> file.read_text(encoding="utf-8").startswith("<svg")
True
"""

from lightdp.report._audit import audit_chart, save_audit
from lightdp.report._chart import LOOK, Chart, check_path, save
from lightdp.report._figures import caveats, run_table, uploads
from lightdp.report._page import save_runs
from lightdp.report._panels import run_chart
from lightdp.report._plan import plan_chart

__all__ = [
    "LOOK", "Chart", "audit_chart", "caveats", "check_path", "plan_chart", "run_chart", "run_table", "save",
    "save_audit", "save_runs", "uploads",
]  # fmt: skip
