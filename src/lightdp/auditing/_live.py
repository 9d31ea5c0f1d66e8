"""`lightdp audit` of a plan: real clients, keys and bytes, seen from the seat of the server and its colluders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from lightdp import gaussian
from lightdp._validate import choice, integer, probability
from lightdp.auditing import _stories as stories
from lightdp.auditing._audit import Audit, Figure
from lightdp.auditing._clip import clip_held
from lightdp.auditing._measure import Sample
from lightdp.auditing._schedule import ROUNDS, Round, random_rounds, read_rounds, told, with_other_models
from lightdp.auditing._search import STEPS, Near, search, truth
from lightdp.auditing._stage import Stage, coins, excess, made, widened
from lightdp.auditing._stories import Telling, rotation
from lightdp.auditing._view import View
from lightdp.errors import ArgumentError
from lightdp.masks import Grid
from lightdp.planning import Plan

Lies = Literal["none", "rotation", "search", "models"]
VALUES = 100_000
"""How many coordinates are measured by default."""
_CLIENTS = 1000  # all of them are run, with keys for each two
_MOST = 10**11  # values, which take days
_LEAST = 1000  # values below which the parametric interval is not to be trusted
_LEAST_RATIO = 10  # values for each upload: the covariance is estimated from them
_SEARCH = 0.5  # share of the progress bar that a search takes
_KEPT = 1 << 22  # numbers of one run that are held at a time


def audit(
    plan: Plan,
    *,
    values: int = VALUES,
    confidence: float = 0.99,
    schedule: str | Path = "random",
    lies: Lies = "none",
    play: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Audit:
    """Run real clients under `plan` and measure what their bytes reveal about client 0.

    The adversary is the server with as many colluders as the plan allows. It sees every upload, late ones too, and
    takes out what its colluders know. Each of `values` coordinates is one experiment: the data of client 0 changes it
    by one whole sensitivity or not, in every round. Measured are μ by the optimal linear test, by an attack without
    assumptions and from the covariance of the uploads; the covariance is compared with what the plan says, and an
    update beyond the clip is sent.

    Formal guarantee: for clients that do as the plan says, the probability that the audit does not hold is at most
    1 − `confidence`; that is shared equally by all statements.

    Args:
        plan: the noise; a plan that clients can follow alone, with whole batches.
        values: number of coordinates; memory does not grow with it.
        confidence: probability that all statements are right.
        schedule: "random", or a file of used and late clients in each round.
        lies: what the server tells clients: the truth, the rotation of (W5), or those for which a search finds the
            truth nearest to what is claimed; or "models": the truth, with another model for one client in each round.
        play: rounds of a random schedule, by default 5 or all.
        seed: of the random schedule and of the search.
        threads: cores that expand noise; None for all.
        progress: is told the share that is done.

    Raises:
        ArgumentError: an argument is out of range, or the plan cannot be audited so.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=8, delta=1e-5, unit="client")
    >>> found = lightdp.audit(plan, values=2000)
    >>> found.exact.mu <= found.budget.mu
    True
    """
    if plan.sampling_rate != 1:
        raise ArgumentError(f"sampling_rate must be 1 for an audit, got sampling_rate={plan.sampling_rate:g}")
    if plan.graph.random:
        raise ArgumentError(
            "graph must be complete or circulant for an audit; lightdp plan says what rounds on a random graph cost, "
            f"got graph='random:{plan.graph.degree}'"
        )
    integer("clients", plan.clients, 2, _CLIENTS)
    choice("lies", lies, get_args(Lies))
    level, seed = 1 - probability("confidence", confidence), integer("seed", seed, 0)
    number = min(ROUNDS, plan.turns) if play is None else integer("play", play, 1, plan.turns)
    if play is not None and str(schedule) != "random":
        raise ArgumentError(f"play must be left out where a file lists the rounds, got play={play}")
    report = progress or (lambda _: None)
    rounds: Sequence[Round] | None = None
    near, refused = dict[str, Near](), 0
    if lies in {"rotation", "search"}:
        if str(schedule) != "random" or not plan.repairs:
            raise ArgumentError(
                f"lies must be none or models with a file of rounds or a plan without repair, got lies={lies!r}"
            )
        script = rotation(plan, play)
        if lies == "search":
            starts = {"truth": truth(plan, random_rounds(plan, number, seed)), "rotation": script}
            script, near = search(plan, starts, seed=seed, steps=STEPS, progress=lambda share: report(_SEARCH * share))
        played = stories.play(plan, script.story(plan), budget=True)
        tellings: Sequence[Telling] = [each.telling for each in played.sent]
        refused = played.refused
    else:
        rounds = random_rounds(plan, number, seed) if str(schedule) == "random" else read_rounds(Path(schedule), plan)
        tellings = told(rounds) if lies == "none" else with_other_models(told(rounds))
    last = range(plan.clients - plan.colluders, plan.clients)  # those that lies are made for
    view = View(plan, tellings, last if rounds is None else None)
    values = integer("values", values, max(_LEAST, _LEAST_RATIO * len(view.uploads)), _MOST)
    statements = 5 if plan.unit == "client" else 4  # three measurements, the covariance, the clip
    clip = clip_held(plan, level / statements, threads)
    data_rounds = len({len(each.past) for each in tellings if not each.closing})
    first = _SEARCH if lies == "search" else 0.0
    stage, sample = _measure(view, rounds, values, threads, lambda share: report(first + (1 - first) * share))
    measured = (
        sample.linear(level / statements),
        sample.assumption_free(level / statements),
        sample.covariance(level / statements),
    )
    return Audit(
        plan=plan,
        lies=lies,
        schedule=str(schedule),
        confidence=confidence,
        values=values,
        level=level / statements,
        rounds=max(len(each.past) for each in tellings) + 1,
        data_rounds=data_rounds,
        ended=rounds is not None and str(schedule) == "random" and data_rounds < number,
        shows_late=rounds is None or any(each.used and each.late for each in rounds),
        view=view,
        refused=refused,
        near=near,
        exact=Figure.of(view.mu, plan.delta),
        announced=Figure(*stage.spent(worst=False)),
        worst=Figure(*stage.spent(worst=True)),
        budget=Figure(gaussian.mu(plan.budget, plan.delta), plan.budget),
        measurements=measured,
        deviations=sample.deviations(),
        clip=clip,
        scores=sample.histogram(),
    )


def _measure(
    view: View, rounds: Sequence[Round] | None, values: int, threads: int | None, progress: Callable[[float], None]
) -> tuple[Stage, Sample]:
    """The last of the runs with fresh keys, as many as fit the memory, and what they gave together."""
    plan = widened(view.plan, "record")
    runs = max(2, math.ceil(values * len(view.uploads) / _KEPT))
    sizes = [values // runs + (run < values % runs) for run in range(runs)]
    model = None if rounds is None else [each.telling.client in rounds[each.round].used for each in view.uploads]
    grid, used = Grid.of(plan, sizes[0]), None if model is None else np.array(model)
    sample = Sample(view, *made(grid), plan.delta, used, excess=excess(grid))
    done = 0
    for size in sizes:
        stage, secret = Stage(plan, view, size, threads), coins(size)
        uploads = np.zeros((len(view.uploads), size))
        for row, each in enumerate(view.uploads):
            uploads[row] = stage.ask(each, None if each.telling.closing else sample.shift[row] * secret)
            done += size
            progress(done / (values * len(view.uploads)))
        sample.add(uploads, secret)
    return stage, sample
