"""Charts of the comparison and of the paper's cells."""

from lightdp_lab.charts.compare import compare_chart
from lightdp_lab.charts.results import results_charts

__all__ = ["compare_chart", "results_charts"]
