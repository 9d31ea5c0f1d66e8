from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare, norm

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.training.arrivals import Arrivals, arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

RANDOM = ["none", "uniform", "links:0.2", "latency:1:0.5:1.5", "latency:1:0.5:2:0.3:4"]


def _fits(counts: Sequence[int] | NDArray[np.int64], law: Sequence[float] | NDArray[np.float64]) -> float:
    """The p-value of a chi-square test of counts against a law, its rare values taken together."""
    counts, law = np.asarray(counts), np.asarray(law) / np.sum(law)
    often = law * counts.sum() >= 5
    expected = np.append(law[often], law[~often].sum()) * counts.sum()
    observed = np.append(counts[often], counts[~often].sum())
    if expected[-1] == 0:
        return float(chisquare(observed[:-1], expected[:-1]).pvalue) if observed[-1] == 0 else 0.0
    return float(chisquare(observed, expected).pvalue)


@given(
    spec=st.sampled_from(RANDOM),
    clients=st.integers(1, 30),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**70),
    number=st.integers(1, 10**6),
    grace=st.integers(0, 1),
)
def test_a_round_is_well_formed_within_the_bound_and_a_pure_function_of_seed_and_round(  # noqa: PLR0917
    spec: str, clients: int, share: float, seed: int, number: int, grace: int
) -> None:
    bound = int(share * clients)
    shares = {} if spec.startswith(("none", "latency")) else {"late_seen": 0.25, "late_by_one": 0.5}
    came = arrivals(spec, clients=clients, bound=bound, seed=seed, grace=grace, **shares)
    result = came(number)
    assert result.used.clients == result.next.clients == result.late.clients == clients
    assert len(result.used) + len(result.next) + len(result.late) == len(result.sent)
    assert len(result.used) >= clients - bound or not result.used
    assert len(result.final) >= clients - bound or not result.final
    assert grace == 1 or not result.next
    came(number + 1)  # other rounds in between change nothing
    assert came(number) == result
    assert arrivals(spec, clients=clients, bound=bound, seed=seed, grace=grace, **shares)(number) == result


@pytest.mark.parametrize("spec", RANDOM[1:])
def test_seeds_and_rounds_differ(spec: str) -> None:
    def history(seed: int, start: int) -> list[Arrivals]:
        came = arrivals(spec, clients=20, bound=20, seed=seed)
        return [came(number) for number in range(start, start + 10)]

    assert history(0, 1) != history(1, 1)
    assert history(0, 1) != history(0, 11)


def test_none_brings_everybody() -> None:
    came = arrivals("none", clients=5, bound=0, seed=0)
    assert came(1) == Arrivals.of(5, range(5))


def test_uniform_makes_each_number_of_stragglers_equally_likely() -> None:
    came = arrivals("uniform", clients=12, bound=4, seed=1)
    counts = np.bincount([12 - len(came(number).used) for number in range(1, 3001)], minlength=5)
    assert _fits(counts, np.ones(5)) > 1e-3
    assert _fits(counts, binom(4, 0.5).pmf(np.arange(5))) < 1e-6
    assert _fits(counts, [1, 1, 1, 1, 1.3]) < 1e-2


def test_uniform_makes_each_set_of_stragglers_of_one_size_equally_likely() -> None:
    came = arrivals("uniform", clients=5, bound=2, seed=2)
    pairs = dict.fromkeys(combinations(range(5), 2), 0)
    for number in range(1, 3001):
        missing = tuple(sorted(set(range(5)) - set(came(number).used)))
        if missing in pairs:
            pairs[missing] += 1
    counts = list(pairs.values())
    assert sum(counts) > 900
    assert _fits(counts, np.ones(10)) > 1e-3
    assert _fits(counts, [2.0 if 0 in pair else 1.0 for pair in pairs]) < 1e-6


def test_links_fail_independently_with_their_probability() -> None:
    came = arrivals("links:0.2", clients=10, bound=10, seed=3)
    rounds = [came(number) for number in range(1, 2001)]
    counts = np.bincount([10 - len(result.used) for result in rounds], minlength=11)
    assert _fits(counts, binom(10, 0.2).pmf(np.arange(11))) > 1e-3
    assert _fits(counts, binom(10, 0.23).pmf(np.arange(11))) < 1e-6
    each = [sum(i not in result.used for result in rounds) for i in range(10)]
    assert _fits(each, np.ones(10)) > 1e-3


def test_a_round_with_too_many_missing_is_void_and_what_came_was_seen() -> None:
    free, bound = (arrivals("links:0.3", clients=10, bound=b, seed=4, late_seen=0.5) for b in (10, 3))
    void = 0
    for number in range(1, 301):
        wanted = free(number)
        if len(wanted.used) < 7:
            void += 1
            assert bound(number) == Arrivals.of(10, (), wanted.used | wanted.late)
        else:
            assert bound(number) == wanted
    assert 0 < void < 300


@pytest.mark.parametrize("spec", ["uniform", "links:0.3"])
def test_the_missing_are_seen_late_with_the_given_probability(spec: str) -> None:
    came = arrivals(spec, clients=10, bound=10, seed=5, late_seen=0.25)
    rounds = [came(number) for number in range(1, 1001)]
    missing, late = sum(10 - len(result.used) for result in rounds), sum(len(result.late) for result in rounds)
    assert _fits([late, missing - late], [0.25, 0.75]) > 1e-3
    assert _fits([late, missing - late], [0.3, 0.7]) < 1e-3


@pytest.mark.parametrize(("late_seen", "seen"), [(0, False), (1, True)])
def test_late_seen_may_be_never_and_always(late_seen: float, seen: bool) -> None:
    came = arrivals("uniform", clients=10, bound=5, seed=6, late_seen=late_seen)
    for number in range(1, 50):
        result = came(number)
        assert len(result.late) == (10 - len(result.used) if seen else 0)


def test_who_is_used_does_not_depend_on_who_is_seen_late() -> None:
    never, always = (arrivals("uniform", clients=10, bound=5, seed=6, late_seen=seen) for seen in (0, 1))
    assert all(never(number).used == always(number).used for number in range(1, 50))


@pytest.mark.parametrize("spec", ["uniform", "links:0.3"])
def test_the_missing_come_one_round_late_with_the_given_probability_and_too_late_with_the_other(spec: str) -> None:
    came = arrivals(spec, clients=10, bound=10, seed=5, late_seen=0.25, late_by_one=0.4, grace=1)
    without = arrivals(spec, clients=10, bound=10, seed=5, late_seen=0.25, late_by_one=0.4)
    rounds = [came(number) for number in range(1, 1001)]
    counts = [
        sum(len(each) for each in sets) for sets in zip(*((r.next, r.late, ~r.sent) for r in rounds), strict=True)
    ]
    assert _fits(counts, [0.4, 0.25, 0.35]) > 1e-3
    assert _fits(counts, [0.45, 0.25, 0.3]) < 1e-3
    for number, one in enumerate(rounds, 1):
        assert without(number) == Arrivals.of(10, one.used, one.next | one.late)


def test_under_grace_a_round_is_void_only_if_too_few_come_within_it() -> None:
    free, bound = (arrivals("links:0.4", clients=10, bound=b, seed=4, late_by_one=0.5, grace=1) for b in (10, 3))
    kinds = {"in time": 0, "waits": 0, "void": 0}
    for number in range(1, 301):
        wanted, nobody = free(number), ClientSet.none(10)
        if len(wanted.used) >= 7:
            kinds["in time"] += 1
            assert bound(number) == wanted
        elif len(wanted.final) >= 7:
            kinds["waits"] += 1
            assert bound(number) == Arrivals(nobody, wanted.final, wanted.late)
        else:
            kinds["void"] += 1
            assert bound(number) == Arrivals(nobody, nobody, wanted.sent)
    assert min(kinds.values()) > 20


def test_who_waits_for_others_is_void_without_them() -> None:
    came = Arrivals.of(5, used=[0, 1, 2], next=[3]).settled(4)
    assert came == Arrivals.of(5, used=[], next=[0, 1, 2, 3])
    assert came.without(ClientSet.of(5, [4]), least=4) == came
    assert came.without(ClientSet.of(5, [3]), least=4) == Arrivals.of(5, used=[], late=[0, 1, 2])


@pytest.mark.parametrize(
    ("spec", "shares", "message"),
    [
        ("uniform", {"late_by_one": 1.5}, r"late_by_one must be in \[0, 1\], got late_by_one=1.5"),
        (
            "uniform",
            {"late_by_one": 0.6, "late_seen": 0.6},
            "at most 1 together, got late_seen=0.6 and late_by_one=0.6",
        ),
        ("latency:1:1:1", {"late_by_one": 0.5}, "must be 0 with arrivals='latency:1:1:1', .* got late_by_one=0.5"),
        ("none", {"late_by_one": 0.5}, "late_by_one must be 0 with arrivals='none', .* got late_by_one=0.5"),
        ("none", {"late_seen": 0.5}, "late_seen must be 0 with arrivals='none', .* got late_seen=0.5"),
        ("uniform", {"grace": 2}, "grace must be"),
    ],
)
def test_shares_of_late_uploads_that_cannot_be_are_refused(spec: str, shares: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        arrivals(spec, clients=4, bound=2, seed=0, **shares)


def test_within_twice_the_deadline_an_upload_is_one_round_late() -> None:
    came = arrivals("latency:1:0.75:1.5", clients=20, bound=20, seed=7, grace=1)
    rounds = [came(number) for number in range(1, 501)]
    counts = [sum(len(each) for each in sets) for sets in zip(*((r.used, r.next, r.late) for r in rounds), strict=True)]
    past, twice = (float(norm.sf(math.log(deadline) / 0.75)) for deadline in (1.5, 3.0))
    assert sum(counts) == 10_000
    assert _fits(counts, [1 - past, past - twice, twice]) > 1e-3
    later = float(norm.sf(math.log(4.5) / 0.75))
    assert _fits(counts, [1 - past, past - later, later]) < 1e-6


def test_latency_is_log_normal_against_the_deadline_and_late_means_seen() -> None:
    came = arrivals("latency:2:0.5:3", clients=20, bound=20, seed=7)
    rounds = [came(number) for number in range(1, 501)]
    assert all(len(result.used) + len(result.late) == 20 for result in rounds)
    late = sum(len(result.late) for result in rounds)
    chance = float(norm.sf(math.log(3 / 2) / 0.5))
    assert _fits([late, 10_000 - late], [chance, 1 - chance]) > 1e-3
    for wrong in (norm.sf(math.log(3 / 2) / 0.6), norm.sf((3 - 2) / 0.5)):
        assert _fits([late, 10_000 - late], [float(wrong), 1 - float(wrong)]) < 1e-6


def test_the_slow_clients_are_always_the_same_and_slower_by_the_factor() -> None:
    came = arrivals("latency:1:0.5:2:0.25:3", clients=20, bound=20, seed=8)
    late = np.zeros(20, np.int64)
    for number in range(1, 401):
        late[list(came(number).late)] += 1
    slow = late > 200
    assert slow.sum() == 5
    for group, patience in ((late[slow], 2 / 3), (late[~slow], 2.0)):
        chance, n = float(norm.sf(math.log(patience) / 0.5)), 400 * len(group)
        assert _fits([group.sum(), n - group.sum()], [chance, 1 - chance]) > 1e-3
        assert _fits([group.sum(), n - group.sum()], [chance + 0.05, 0.95 - chance]) < 1e-3


@pytest.mark.parametrize(("deadline", "used"), [(0.99, 0), (1, 4), (1.01, 4)])
def test_without_spread_everybody_takes_the_median(deadline: float, used: int) -> None:
    assert len(arrivals(f"latency:1:0:{deadline}", clients=4, bound=4, seed=0)(1).used) == used


def _trace(folder: Path, text: str) -> str:
    (folder / "trace.csv").write_text(text, encoding="utf-8")
    return f"trace:{folder / 'trace.csv'}"


def test_a_trace_is_played_as_recorded(tmp_path: Path) -> None:
    spec = _trace(tmp_path, "round,client,status\n1,0,late\n1,2,lost\n3,1,used\n3,3,late\n")
    came = arrivals(spec, clients=4, bound=2, seed=0)
    assert came(1) == Arrivals.of(4, (1, 3), (0,))
    assert came(2) == Arrivals.of(4, range(4))
    assert came(3) == Arrivals.of(4, (0, 1, 2), (3,))
    assert came(10**6) == Arrivals.of(4, range(4))


def test_a_trace_says_who_was_one_round_late(tmp_path: Path) -> None:
    spec = _trace(tmp_path, "round,client,status\n1,0,next\n1,2,lost\n")
    assert arrivals(spec, clients=4, bound=2, seed=0, grace=1)(1) == Arrivals.of(4, (1, 3), (), (0,))
    assert arrivals(spec, clients=4, bound=2, seed=0)(1) == Arrivals.of(4, (1, 3), (0,))
    assert arrivals(spec, clients=4, bound=1, seed=0, grace=1)(1) == Arrivals.of(4, (), (), (0, 1, 3))


def test_a_trace_with_too_many_missing_gives_a_void_round(tmp_path: Path) -> None:
    spec = _trace(tmp_path, "round,client,status\n1,0,late\n1,2,lost\n")
    assert arrivals(spec, clients=4, bound=1, seed=0)(1) == Arrivals.of(4, (), (0, 1, 3))


def test_a_trace_may_have_its_columns_in_any_order_and_more_of_them(tmp_path: Path) -> None:
    spec = _trace(tmp_path, "\ufeffstatus,seconds,client,round\r\n lost ,9.5,1,2\r\n")
    assert arrivals(spec, clients=2, bound=1, seed=0)(2) == Arrivals.of(2, (0,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a trace must have columns round, client, status, got None"),
        ("round,client\n1,1\n", r"a trace must have columns round, client, status, got \['round', 'client'\]"),
        ("round,client,status\n1,1,gone\n", r"line 2 of .*trace.csv must hold .* got '1', '1' and 'gone'"),
        ("round,client,status\n1,1,lost\n0,1,lost\n", r"line 3 of .* a round >= 1, .* got '0', '1' and 'lost'"),
        ("round,client,status\n1,4,lost\n", r"a client in 0\.\.3 .* got '1', '4' and 'lost'"),
        ("round,client,status\n1,-1,lost\n", "got '1', '-1' and 'lost'"),
        ("round,client,status\n1.0,1,lost\n", "got '1.0', '1' and 'lost'"),
        (f"round,client,status\n{'9' * 5000},1,lost\n", "must hold a round >= 1"),
        ("round,client,status\n1\n", "got '1', '' and ''"),
        (
            "round,client,status\n1,1,lost\n1,1,late\n",
            "line 3 of .* contradicts an earlier one on round 1 and client 1",
        ),
        ('round,client,status\n1,1,"lost\n', "cannot read the trace"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        arrivals(_trace(tmp_path, text), clients=4, bound=2, seed=0)


def test_a_trace_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"cannot read the trace .*absent.csv: .*No such file"):
        arrivals(f"trace:{tmp_path}/absent.csv", clients=4, bound=2, seed=0)
    (tmp_path / "bytes.csv").write_bytes(b"round,client,status\n\xff\xfe")
    with pytest.raises(ArgumentError, match=r"cannot read the trace .*bytes\.csv"):
        arrivals(f"trace:{tmp_path}/bytes.csv", clients=4, bound=2, seed=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("often", r"arrivals must be one of none, uniform, links:PROBABILITY, latency:.*, got arrivals='often'"),
        ("", "arrivals must be one of"),
        ("none:", "arrivals must be one of"),
        ("uniform:3", "arrivals must be one of"),
        ("links", "arrivals must be given as links:PROBABILITY, got arrivals='links'"),
        ("links:a", "arrivals must be given as links:PROBABILITY"),
        ("links:0.1:0.2", "arrivals must be given as links:PROBABILITY"),
        ("links:1.5", r"links must be in \[0, 1\], got links=1.5"),
        ("links:nan", "links must be finite"),
        ("latency:1:2", r"arrivals must be given as latency:MEDIAN:SPREAD:DEADLINE\[:SLOWFRACTION:SLOWFACTOR\]"),
        ("latency:1:2:3:4", "arrivals must be given as latency"),
        ("latency:0:1:1", "latency MEDIAN must be > 0"),
        ("latency:1:-1:1", "latency SPREAD must be >= 0"),
        ("latency:1:1:0", "latency DEADLINE must be > 0"),
        ("latency:1:1:1:1.1:2", r"latency SLOWFRACTION must be in \[0, 1\]"),
        ("latency:1:1:1:0.5:0", "latency SLOWFACTOR must be > 0"),
    ],
)
def test_a_wrong_spec_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        arrivals(spec, clients=4, bound=2, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 0}, "clients must be >= 1"),
        ({"bound": 5}, r"bound must be in 0\.\.4, got bound=5"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"late_seen": 1.5}, r"late_seen must be in \[0, 1\], got late_seen=1.5"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        arrivals("uniform", **({"clients": 4, "bound": 2, "seed": 0} | settings))


@pytest.mark.parametrize("spec", ["latency:1:1:1", "trace:x.csv"])
def test_late_seen_is_refused_where_the_law_knows_who_was_late(spec: str) -> None:
    with pytest.raises(ArgumentError, match="late_seen must be 0 with"):
        arrivals(spec, clients=4, bound=2, seed=0, late_seen=0.5)


def test_rounds_count_from_one() -> None:
    with pytest.raises(ArgumentError, match="round must be >= 1, got round=0"):
        arrivals("none", clients=4, bound=2, seed=0)(0)
