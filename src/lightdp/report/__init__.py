"""Pictures and pages of plans, runs and audits: HTML that needs nothing else, PNG or SVG.

`save_plan`, `save_runs` and `save_audit` write what `lightdp plan`, `lightdp report` and `lightdp audit` show: a page
(.html) or its charts (.png, .svg). All pages have one frame, frame.html; `save_page` puts a `Page` of other things into
it, `engine` other templates, and `save` writes any chart as a picture. `check_path` refuses, before any work, a path to
which they could not write. `plan_chart`, `audit_chart` and `run_chart` are the pictures, `run_tables`, `caveats` and
`uploads` say in the terminal what the page of runs says. `sheet`, `heading`, `line_names`, `TONES`, `FATES`,
`WHEREABOUTS`, `colours` and `LOOK` make charts look alike. Needs the extra `report`.

>>> import lightdp, lightdp.report, pathlib, tempfile
>>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=9, epsilon=3, delta=1e-5)
>>> file = pathlib.Path(tempfile.mkdtemp()) / "plan.svg"
>>> lightdp.report.save_plan(plan, file)
>>> file.read_text(encoding="utf-8").startswith("<svg")
True
"""

from lightdp.report._audit import audit_chart, save_audit
from lightdp.report._chart import (
    FAINT,
    LOOK,
    SOFT,
    TONES,
    Chart,
    check_path,
    data,
    decades,
    heading,
    line_names,
    save,
    sheet,
    within,
)  # fmt: skip
from lightdp.report._figures import caveats, run_tables, uploads
from lightdp.report._frame import engine, page_text, save_either, save_page
from lightdp.report._members import WHEREABOUTS
from lightdp.report._page import save_runs
from lightdp.report._panel import Card, Page, Panel, Section, Table, crossed
from lightdp.report._panels import colours, run_chart
from lightdp.report._plan import plan_chart, save_plan
from lightdp.report._uploads import FATES

__all__ = [
    "FAINT", "FATES", "LOOK", "SOFT", "TONES", "WHEREABOUTS", "Card", "Chart", "Page", "Panel", "Section", "Table",
    "audit_chart", "caveats", "check_path", "colours", "crossed", "data", "decades", "engine", "heading",
    "line_names", "page_text", "plan_chart", "run_chart", "run_tables", "save", "save_audit", "save_either",
    "save_page", "save_plan", "save_runs", "sheet", "uploads", "within",
]  # fmt: skip
