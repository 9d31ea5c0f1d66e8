"""Simulated trainings on a network (entry point "lightdp.channels"): sums of `lightdp`, rounds as a scheme has them.

How a round ends and how long it takes comes from the scheme's real messages, on short vectors.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.schemes import scheme
from lightdp.training.arrivals import Arrivals, straggler_law
from lightdp.training.channel import Channel, Distribution, direct
from lightdp.training.config import Config, peer_failure
from lightdp_lab.schemes import SCHEMES, Faults, Links, Player, Smpc, Task, climb

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_SHORT = 16  # values of an update whose round only has to end as a long one would
_TURNS = 3
_SECONDS = 1.0  # for a round whose time is measured; longer vectors are extrapolated


class Rehearsal:
    """Each round's faults meet the real scheme before its sum is drawn.

    Whether a round comes off does not depend on how long the vectors are, so short ones tell. Its time does: the
    seconds that a round would take on 10 Mbit/s up, 50 down and 50 ms one way, work included, are measured once for
    each number of missing clients, at the model's size or, where that takes too long, on the line through two smaller
    ones. Local training and the download of the model, the same for all schemes, are not in them.

    Clients that the arrivals name as missing fall silent at a stage of the round, each alike; a client that does so
    after its upload may well be in the sum. A failed round has no sum and costs the time up to the stage at which it
    failed. Schemes that hide all but the sum reveal nothing in it, so it costs no privacy.

    Schemes that are not `played` by their entry in the registry take part for their time only.

    Args:
        config: the run, whose `links` say how messages between clients travel; its scheme is not "auto".
        parameters: length of an update.
    """

    def __init__(self, config: Config, parameters: int) -> None:
        self.config, self.parameters = config, parameters
        kind = SCHEMES["plain" if config.scheme == "none" else config.scheme]
        failure = peer_failure(config.links)
        self.links = Links() if failure is None else Links("direct", failure)
        names = ("clients", "colluders", "stragglers", "epsilon", "delta", "rounds")
        law = straggler_law(config.arrivals)
        asked = {name: getattr(config, name) for name in names}
        asked["masks"] = "gaussian" if config.masks == "gaussian" else "auto"
        task = Task(**asked, dimension=parameters, straggler_law=law)

        def sized(dimension: int) -> Player:
            return Player(kind, dataclasses.replace(task, dimension=dimension), self.links)

        with threadpool_limits(1):
            self.player, climbed = climb(kind, task, self.links, seconds=_SECONDS)
            before, last = climbed[-2:] if len(climbed) > 1 else climbed * 2
            self.measured = last.dimension == parameters
            self.clean = last if self.measured else before.towards(last, parameters)
            self.sent = self.clean.up + self.clean.peer  # bytes of a client in a round without faults
            self.short, self.quarter = sized(min(_SHORT, parameters)), sized(max(last.dimension // 4, 1))
        self.hides, self.follows = issubclass(kind, Smpc), scheme(config.scheme).simulated
        self.seconds = lru_cache(maxsize=None)(self._seconds)

    def noise(self, used: int) -> float:
        """Variance of the scheme's noise in the sum of `used` clients, in units of σ_eff²."""
        return self.short.scheme.noise(used) / self.short.task.plan("smpc").sigma_effective ** 2

    def about(self) -> dict[str, Any]:
        """For the record."""
        links = self.links
        speeds = {name: getattr(links, name) for name in ("uplink", "downlink", "latency")}
        played = {"measured": self.measured, "dimension_played": self.player.task.dimension}
        return {"links": links.peers, "peer_failure": links.failure, **speeds, "trips": self.clean.trips, **played}

    def meet(self, number: int, came: Arrivals) -> Arrivals:
        """Who is in the sum of a round after all, its seconds, and the stage at which it failed, if it did.

        Args:
            number: of the round, from 0; it decides the faults, together with the seed.
            came: who came, before the scheme's own losses.
        """
        faults = self._faults(number, came)
        stages = self.seconds(sum(map(len, faults.lost.values())))
        if not self.follows:
            return dataclasses.replace(came, network=_network(stages[-1]))
        with threadpool_limits(1):
            played = self.short.round(faults)
        enough, nobody = self.config.clients - self.config.stragglers, ClientSet.none(self.config.clients)
        if played.result is not None and len(played.result.used) >= enough:
            used = ClientSet.of(self.config.clients, played.result.used)
            return Arrivals(used, nobody, nobody if self.hides else came.late - used, _network(stages[-1]))
        seconds = stages[min(len(played.net.stages), len(stages)) - 1]
        seen = nobody if self.hides else came.used | came.late
        stage = played.net.stages[-1].name if played.failure is None else played.failure.stage
        return Arrivals(nobody, nobody, seen, _network(seconds, stage))

    def _faults(self, number: int, came: Arrivals) -> Faults:
        """Missing clients and broken links between peers, from the seed and the round."""
        rng = np.random.default_rng([self.config.seed, int.from_bytes(b"play"), number])  # noqa: TID251  simulated
        present = came.final or came.late  # who came to a void round counts as late
        stages = (rng.random(self.config.clients) * self.clean.trips).astype(int)
        lost = {k: frozenset(np.flatnonzero(~present.flags & (stages == k)).tolist()) for k in range(self.clean.trips)}
        return Faults(cut=Faults.drawn(self.links, self.config.clients, rng).cut, lost=lost)

    def _seconds(self, missing: int) -> list[float]:
        """Modelled seconds until each stage ends, with so many clients missing, spread over the stages."""
        trips = self.clean.trips
        lost = {stage: frozenset(range(stage, missing, trips)) for stage in range(trips)}
        with threadpool_limits(1):
            here = _ends(self.player, Faults(lost=lost))
            if self.measured:
                return here
            there = _ends(self.quarter, Faults(lost=lost))
        size = self.player.task.dimension
        far = (self.parameters - size) / max(size - self.quarter.task.dimension, 1)
        return [b + far * max(b - a, 0.0) for a, b in zip(there, here, strict=False)]


def _network(seconds: float, failed: str | None = None) -> dict[str, Any]:
    """What the line of a round says."""
    return {"modelled_seconds": seconds, "failed": failed}


def _ends(player: Player, faults: Faults) -> list[float]:
    """Modelled seconds until each stage ends, the quickest of a few rounds: a busy machine only makes them longer."""
    return min((player.round(faults).net.ends() for _ in range(_TURNS)), key=lambda ends: ends[-1])


def channel(
    config: Config, plan: Plan | None, parameters: int, device: torch.device | str, given: Callable[[], bytes]
) -> Channel:
    """The channel of a run that names links or a scheme of the lab; arguments as in `lightdp.training.channel`.

    A `Rehearsal` decides who is in a round, how long it takes and where it fails; sums are those of a run without a
    network. Schemes with the noise of SMPC + DP get the noise that they play, at the scale of the plan. Of "auto", the
    calibration that the plan took is played.
    """
    played, found = config, direct(config, plan, parameters, device, given)
    if plan is not None and scheme(config.scheme).calibration == "auto":
        played = dataclasses.replace(config, scheme=plan.request.calibration)
    rehearsal = Rehearsal(played, parameters)
    if plan is not None and not plan.deployable and scheme(config.scheme).simulated and isinstance(found, Distribution):
        square = plan.sigma_effective**2
        found.lasting = lambda used: rehearsal.noise(used) * square
    found.bytes_up, found.network, found.meet = rehearsal.sent, rehearsal.about(), rehearsal.meet
    return found
