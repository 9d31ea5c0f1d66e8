"""`python -m lightdp.runlog` prints the reference page of the format."""

import sys

from lightdp.runlog import schema

sys.stdout.write(schema())
