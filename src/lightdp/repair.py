"""(R1), (W5): what rounds cost under carry-over repair."""

from __future__ import annotations

from lightdp.noise_graph import gain

RETRIES = 2
"""How many more uploads may carry a repair that rode in an upload which came too late (R1)."""


def late_cost(gamma: float, peers: int, least: int) -> float:
    """(R1): cost, as a share of (Δ/σ_U)², of a round that came too late, if all its repairs come in time.

    Args:
        gamma: γ.
        peers: a, honest neighbours that were used in that round.
        least: the fewest honest clients, itself included, that a client finds in a round it is used in.
    """
    if peers < 1 or gamma == 0:
        return 1.0  # its own individual noise, which no late round exceeds
    return min(1.0, (2 + 1 / gamma) / peers + 1 / least)


def worst_late_cost(gamma: float, honest: int, stragglers: int) -> float:
    """(R1): the most that a late round can cost, with `RETRIES` late repairs, all in void rounds, from each peer."""
    peers = max(honest - stragglers, 0)
    if peers < 1:
        return 1.0
    return min(1.0, late_cost(gamma, peers, peers) + RETRIES * (1 / peers + 1 / honest))


def lie_cost(gamma: float, honest: int, stragglers: int) -> float:
    """(W5): the most that peers which a server tells other straggler sets can add to a client's used rounds.

    Each of the n − 1 honest peers leaves the client's history once. In a used round with a honest clients, k of which
    leave there and repair what they share with the client up to 1 + `RETRIES` times, the round costs at most
    u(a) + k e(a), and e falls with a.
    """
    least = max(honest - stragglers, 2)  # a round with one honest client has no peers that could leave
    if honest < 2 or gamma == 0:
        return 0.0
    all_leave = 1 / (1 + (least - 1) * gamma / (1 + (2 + RETRIES) * gamma))
    return (honest - 1) * (all_leave - 1 / float(gain(least, gamma))) / (least - 1)


def worst_cost(gamma: float, honest: int, stragglers: int, late: str, crossed: float = 0.0) -> float:
    """(R1), (W5): the most that one more round can cost, which the budget must have left for it to begin.

    A server that tells clients different straggler sets may spread the costs of its lies over all rounds; room for
    them is kept until the end, and it is not bounded by 1. `crossed`: cross terms with repairs that ride in the round.
    """
    used = 1 / float(gain(max(honest - stragglers, 1), gamma))
    if late != "seen":
        return min(1.0, used + crossed)
    in_time_or_late = min(1.0, max(used, worst_late_cost(gamma, honest, stragglers)) + crossed)
    return max(in_time_or_late, used + lie_cost(gamma, honest, stragglers) + crossed)
