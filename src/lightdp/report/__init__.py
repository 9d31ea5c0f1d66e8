"""Numbers -> charts -> one file to look at: HTML that needs nothing else, PNG or SVG."""

from lightdp.report._plan import plan_chart
from lightdp.report._save import save

__all__ = ["plan_chart", "save"]
