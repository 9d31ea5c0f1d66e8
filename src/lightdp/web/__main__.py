"""`python -m lightdp.web results` prints the summary of measured accuracy that the planner shows."""

import sys
from pathlib import Path

from lightdp.web._measured import summary

sys.stdout.write(summary(Path(sys.argv[1])))
