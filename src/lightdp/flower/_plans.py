"""What goes together: plans as they travel, and the strategies that a plan allows."""

from __future__ import annotations

from functools import lru_cache

from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower._settings import LOG
from lightdp.planning import Plan, Request, solve

_LINEAR = (FedAvg.aggregate_train, FedAvgM.aggregate_train)  # FedProx is FedAvg for the server
_SEPARATE = (
    strategies.Bulyan, strategies.FedMedian, strategies.FedTrimmedAvg, strategies.FedXgbBagging,
    strategies.FedXgbCyclic, strategies.Krum, strategies.MultiKrum, strategies.QFedAvg,
    strategies.DifferentialPrivacyClientSideAdaptiveClipping, strategies.DifferentialPrivacyClientSideFixedClipping,
    strategies.DifferentialPrivacyServerSideAdaptiveClipping, strategies.DifferentialPrivacyServerSideFixedClipping,
)  # fmt: skip  # they need each client's update for itself


def requested(text: str) -> Request:
    """The request for a plan that came from the server, of which nothing is computed yet.

    A Flower server can read replies that come too late, so no plan may assume that they stay unseen, whatever its
    calibration: under late="unseen" a client counts no round that was announced as too late.
    """
    asked = Request.from_json(text)
    if not asked.late_is_seen:
        raise ProtocolError("the plan says late='unseen', but Flower keeps replies that come too late")
    if asked.random and asked.calibration != "exact":
        raise ProtocolError(
            "the plan's graph is random, which protects from a server that tells all clients one history, and a node "
            "cannot know that"
        )
    return asked


@lru_cache(maxsize=8)
def planned(text: str) -> Plan:
    """The plan of a request; one that came from a server must be within the limits of the node, or may cost much."""
    return solve(requested(text))


def refuse(strategy: Strategy, plan: Plan, *, linear: bool) -> None:
    """Raise if strategy and plan cannot work together; `linear` as for `LightDP`."""
    name = type(strategy).__name__
    if isinstance(strategy, _SEPARATE):
        raise ArgumentError(f"strategy must not need each client's own update, which lightdp hides, got {name}")
    if plan.repairs and not linear and type(strategy).aggregate_train not in _LINEAR:
        raise ArgumentError(
            f"strategy must be linear for calibration='repair', got {name}: noise that stragglers leave in a round is "
            "taken out in the next, which a non-linear update would not undo (R3); use calibration='exact', or say "
            "linear=True if it is linear"
        )
    if not plan.request.names_unit:
        raise ArgumentError(
            "plan must be made with unit='client' or unit='record', got one without unit: 'client' protects all data "
            "of a client; 'record' needs an app that clips each record's part (lightdp.flower.RecordSum)"
        )
    if plan.graph.random and plan.repairs:
        raise ArgumentError(
            "plan must not repair on a random graph, which nodes refuse: it protects from a server that tells all "
            "clients one history (S1); use calibration='exact'"
        )
    check_sampling(strategy, plan)
    if type(strategy).start is not Strategy.start:
        raise ArgumentError(
            f"strategy must not have a start of its own, got {name}: LightDP.start has the key round, closing rounds "
            "and what ends a training, and would be run in its place. Move what it adds into evaluate_fn, which is "
            "called after each round, or into a start of a class derived from LightDP; or write the loop yourself "
            "with configure_train, aggregate_train and close of LightDP"
        )
    if planned(plan.to_json()).digest() != plan.digest():
        raise ArgumentError("plan must be as lightdp.plan makes it")
    _compare_momentum(strategy, plan)


def check_sampling(strategy: Strategy, plan: Plan) -> None:
    """Refuse a strategy that samples another number of nodes than the plan has noise for.

    Of N nodes Flower samples max(int(N * fraction_train), min_train_nodes), and N is the plan's population.
    `min_available_nodes` is no limit: so many nodes are waited for in the key round, and more than the plan's are fine.
    """
    clients, population = plan.clients, plan.request.population
    fraction, least = getattr(strategy, "fraction_train", 1.0), getattr(strategy, "min_train_nodes", 0)
    if not 0 < fraction <= 1:
        raise ArgumentError(f"fraction_train must be in (0, 1], got fraction_train={fraction:g}")
    if least > clients:
        raise ArgumentError(
            f"min_train_nodes must be at most the plan's clients, {clients}, got min_train_nodes={least}: lower it, or "
            f"make a plan with lightdp.plan(clients={least}, ...)"
        )
    if population is None:
        if fraction < 1.0 and least < clients:
            cohort, nodes = clients, round(clients / fraction)
            if (available := getattr(strategy, "min_available_nodes", 0)) >= clients:  # the nodes that are sampled from
                cohort, nodes = max(round(available * fraction), least, 2), available
            raise ArgumentError(
                f"fraction_train={fraction:g} needs a plan for cohorts, such as lightdp.plan(clients={cohort}, "
                f"population={nodes}, ...): noise cancels only among the clients of a cohort"
            )
    elif fraction < 1.0 and abs(max(fraction * population, least) - clients) >= 1:
        sampled = max(int(fraction * population), least)
        raise ArgumentError(
            f"fraction_train must be the plan's clients/population = {clients / population:g}, got "
            f"fraction_train={fraction:g}, which with min_train_nodes={least} samples {sampled} of {population} nodes: "
            f"change it, leave it out, or make a plan with lightdp.plan(clients={sampled}, ...)"
        )


def _compare_momentum(strategy: Strategy, plan: Plan) -> None:
    """Log a line if γ was chosen for another momentum than the strategy's, where that is known."""
    if not plan.repairs or plan.request.gamma is not None or type(strategy).aggregate_train not in _LINEAR:
        return
    own, tuned = float(getattr(strategy, "server_momentum", 0.0)), plan.request.momentum
    if own != tuned:
        LOG.info(
            "lightdp: the plan's noise is tuned to momentum=%g, but %s has %g: lightdp.plan(..., momentum=%g) tunes it "
            "to the strategy, with the same guarantee", tuned, type(strategy).__name__, own, own,
        )  # fmt: skip
