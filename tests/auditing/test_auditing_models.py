"""Audits in which one client of each round gets another model than the others (W4)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.auditing import _stories
from lightdp.auditing._schedule import random_rounds, told, with_other_models
from lightdp.auditing._view import VICTIM, View
from lightdp.protocol.seat import Seat

if TYPE_CHECKING:
    from lightdp.auditing import Audit
    from lightdp.planning import Plan
    from lightdp.protocol.history import ClientHistory

SURE = 1 - 1e-8


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 6, "colluders": 1, "stragglers": 2, "rounds": 10, "epsilon": 8.0}
    return lightdp.plan(**asked | {"delta": 1e-5, "calibration": "repair", "unit": "client"} | changed)


def played(plan: Plan, **options: Any) -> Audit:
    return lightdp.audit(plan, lies="models", values=20_000, confidence=SURE, seed=2, **options)


@pytest.mark.parametrize(
    "changed",
    [
        {"masks": "gaussian"},
        {"masks": "drawn"},
        {"masks": "drawn", "grace": 1},
        {"calibration": "exact"},
        {"degree": 4},
    ],
)
def test_audits_with_other_models_hold_and_show_less_than_with_one(changed: dict[str, Any]) -> None:
    plan = planned(**changed)
    found, same = played(plan), lightdp.audit(plan, values=20_000, confidence=SURE, seed=2)
    assert found.problems == ()
    assert found.exact.mu < same.exact.mu
    assert set(found.claims) == {"the budget", "the odometer at worst"}
    assert "gets another model" in next(iter(found.shown()))  # type: ignore[operator]


def test_one_client_of_each_round_gets_another_model_and_none_of_a_closing_one() -> None:
    plan = planned()
    tellings = with_other_models(told(random_rounds(plan, 6, 1)))
    others = [each for each in tellings if each.given is not None]
    assert not any(each.closing for each in others)
    assert len({len(each.past) for each in others}) == len(others) == 6
    assert others[0].client == VICTIM
    assert len({each.client for each in others}) > 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("grace", [0, 1])
def test_the_view_of_other_models_is_as_real_histories_have_it(grace: int, seed: int) -> None:
    plan = planned(grace=grace)
    tellings = with_other_models(told(random_rounds(plan, 6, seed)))
    view = View(plan, tellings)
    honest = [each for each in tellings if each.client not in view.colluders]
    found = _stories.play(plan, honest)
    assert len(found.sent) == len(view.uploads)
    assert view.mu <= View(plan, [replace(each, given=None) for each in tellings]).mu
    assert list(view.colluders) == [plan.clients - 1]
    assert view.covariance(1.0, plan.gamma) == pytest.approx(found.covariance(), abs=1e-12)


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_no_story_with_other_models_costs_more_than_was_reserved(grace: int, seed: int) -> None:
    """(W5): a climb over what clients are told of the past and of the model, whose pairs part and meet again."""
    plan = planned(clients=5, colluders=0, stragglers=2, gamma=20.0, grace=grace, masks="gaussian")
    rng = random.Random(seed)  # noqa: S311  a search, not a secret
    models = [None, bytes(32), bytes([1]) * 32]
    best, asked, split = 0.0, dict[tuple[int, int], bytes | None](), 0
    for script, _ in _stories.climb(plan, _stories.rotation(plan), seed=seed, steps=25):
        story = script.story(plan)
        changed = asked | {(rng.randrange(5), rng.randrange(9)): rng.choice(models) for _ in range(3)}
        lied = [
            each if each.closing else replace(each, given=changed.get((each.client, len(each.past)))) for each in story
        ]
        found = _stories.play(plan, lied)
        split += len({each.given for each in lied}) > 1
        reached = max(_stories.of_reserved(found), _stories.of_worst(found))
        assert reached <= 1
        if reached >= best:
            best, asked = reached, changed
    assert split > 5
    assert best > 0.4


def test_a_covariance_that_knows_one_model_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = View.__init__

    def blind(view: View, *arguments: Any) -> None:
        real(view, *arguments)
        view._given = dict.fromkeys(view._given)

    monkeypatch.setattr(View, "__init__", blind)
    found = played(planned(masks="drawn"))
    assert not found.holds
    assert any("variance" in problem for problem in found.problems)


def test_clients_that_leave_the_model_out_of_their_keys_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then colluders could cancel masks that they should not, and two models share one noise."""
    real = Seat.pairwise

    def unbound(seat: Seat, history: ClientHistory, of: int, peers: tuple[int, ...], **more: Any) -> Any:
        return real(seat, history, of, peers, **more | {"given": None})

    monkeypatch.setattr(Seat, "pairwise", unbound)
    assert not played(planned(masks="drawn", colluders=0)).holds


def test_repairs_that_forget_the_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Seat.pairwise

    def forgotten(seat: Seat, history: ClientHistory, of: int, peers: tuple[int, ...], **more: Any) -> Any:
        return real(seat, history, of, peers, **more | ({"given": bytes(32)} if more.get("undo") else {}))

    monkeypatch.setattr(Seat, "pairwise", forgotten)
    found = played(planned(masks="drawn", colluders=0))
    assert not found.holds
    assert np.isfinite(found.exact.mu)
