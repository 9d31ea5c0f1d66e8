"""The log of a training: a line of JSON when it starts, one for each round, one when it ends.

A training writes its log through `LogWriter`; `RunLog.read` checks and returns the log of a training that is finished,
interrupted or still running; a `Follower` reads one while it grows. The classes `Started`, `Round` and `Ended` are the
format: each of their fields states its type, its check and its meaning once, for writing, for reading and for the
reference page, which `python -m lightdp.runlog > docs/reference/run-log.md` makes.

What is logged cannot flatter the training: a line with a value that is out of range is neither written nor read, and in
a training with a plan no ε, δ or unit is left out, except the ε of rounds with sampled batches.

>>> import tempfile
>>> from pathlib import Path
>>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
>>> started = Started(
...     config={"clients": 9}, plan=None, versions={}, commit=None, partition=None, parameters=10, device=None
... )
>>> first = Round(
...     round=1, accuracy=0.5, loss=None, epsilon=None, used=8, late=0, lost=1, noise_std=0.0, residual_std=0.0
... )
>>> with LogWriter(path) as log:
...     for line in (started, first):
...         _ = log.write(line)
>>> found = RunLog.read(path)
>>> found.rounds == (first,), found.accuracy, found.scheme, found.ended
(True, 0.5, 'none', None)
"""

from lightdp.runlog._attack import Seen, attack_power
from lightdp.runlog._checks import CALIBRATIONS
from lightdp.runlog._follow import MOST_BYTES, Follower
from lightdp.runlog._lines import Ended, Line, Round, Started, claimed_epsilon
from lightdp.runlog._log import RunLog
from lightdp.runlog._read import ContradictionError
from lightdp.runlog._schema import schema
from lightdp.runlog._statement import STATISTICS, guaranteed, not_private
from lightdp.runlog._used import refuse_used
from lightdp.runlog._write import LogWriter, ResumeError

__all__ = [
    "CALIBRATIONS", "MOST_BYTES", "STATISTICS", "ContradictionError", "Ended", "Follower", "Line", "LogWriter",
    "ResumeError", "Round", "RunLog", "Seen", "Started", "attack_power", "claimed_epsilon", "guaranteed", "not_private",
    "refuse_used", "schema",
]  # fmt: skip
