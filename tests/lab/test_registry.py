from __future__ import annotations

import subprocess
import sys

import pytest

from lightdp.schemes import schemes
from lightdp_lab.registry import ALL
from lightdp_lab.schemes import SCHEMES, Links, Player, Smpc, Task

TASK = Task(12, 2, 2, 16)


def test_every_scheme_that_is_played_is_registered_and_the_other_way_round() -> None:
    assert schemes() == ALL
    unplayed = {"none", "smpc", "auto"}  # plain without a plan; noise alone; exact or repair, which are played
    assert {*SCHEMES} == {*ALL} - unplayed
    assert all(kind.about is ALL[name] for name, kind in SCHEMES.items())


@pytest.mark.parametrize("name", sorted({*SCHEMES} - {"paillier"}))  # its keys take a while
def test_the_registry_says_who_talks_and_how_many_trips_a_round_takes(name: str) -> None:
    player = Player(SCHEMES[name], TASK, Links("direct"))
    played = player.round()
    assert (played.net.total("peer") + player.set_up.total("peer") > 0) == ALL[name].talks
    assert ALL[name].trips in (None, played.net.trips)


def test_families_that_hide_all_but_the_sum_are_played_so() -> None:
    hidden = {name for name, kind in SCHEMES.items() if issubclass(kind, Smpc)}
    assert hidden == {name for name in SCHEMES if ALL[name].family in ("secure aggregation", "encryption")}


def test_the_registry_imports_no_scheme() -> None:
    code = (
        "import sys; import lightdp_lab.registry; print(*sorted(name for name in sys.modules if 'lightdp_lab' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["lightdp_lab", "lightdp_lab.registry"]
