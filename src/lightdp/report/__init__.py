"""Numbers -> charts -> one file to look at: HTML that needs nothing else, PNG or SVG."""

from lightdp.report._plan import plan_chart
from lightdp.report._record import Run, read_run
from lightdp.report._run import caveats, run_table
from lightdp.report._run_charts import LOOK, run_chart
from lightdp.report._run_page import save_runs
from lightdp.report._save import check_path, save
from lightdp.report._style import Chart

__all__ = [
    "LOOK",
    "Chart",
    "Run",
    "caveats",
    "check_path",
    "plan_chart",
    "read_run",
    "run_chart",
    "run_table",
    "save",
    "save_runs",
]
