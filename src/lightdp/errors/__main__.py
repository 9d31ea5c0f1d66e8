"""`python -m lightdp.errors` prints the reference page of codes and refusals."""

import sys

from lightdp.errors import page

sys.stdout.write(page())
