"""Trainings made of rosters: cohorts that take turns, members that come and go, servers that resume (C1)."""

from lightdp.federation._cohorts import Cohort, Cohorts
from lightdp.federation._rounds import Rounds

__all__ = ["Cohort", "Cohorts", "Rounds"]
