from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chisquare, kstest

from lightdp.errors import ArgumentError
from lightdp.training.partition import split, summary

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEN = np.repeat(np.arange(10), 100)  # ten labels, a hundred records each

labels_of = st.lists(st.integers(0, 9), min_size=1, max_size=120).map(lambda values: np.array(values, np.int64))
hows = st.one_of(
    st.just("iid"),
    st.sampled_from(["1e-9", "0.01", "0.5", "10", "1e6"]).map("dirichlet:{}".format),
    st.integers(1, 3).map("shards:{}".format),
)


@given(labels=labels_of, how=hows, seed=st.integers(0, 2**70), data=st.data())
def test_every_record_has_one_client_and_every_client_a_record(
    labels: NDArray[np.int64], how: str, seed: int, data: st.DataObject
) -> None:
    most = len(labels) // int(how[7:]) if how.startswith("shards") else len(labels)
    clients = data.draw(st.integers(1, max(most, 1)))
    if clients > most:
        with pytest.raises(ArgumentError, match="shards must be at most"):
            split(labels, clients, how, seed)
        return
    parts = split(labels, clients, how, seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)


@given(labels=labels_of, how=hows, seed=st.integers(0, 100))
def test_a_split_is_a_pure_function_of_its_arguments(labels: NDArray[np.int64], how: str, seed: int) -> None:
    clients = max(len(labels) // 3, 1)
    if how.startswith("shards") and clients * int(how[7:]) > len(labels):
        return
    first, second = split(labels, clients, how, seed), split(labels.astype(np.uint8), clients, how, seed)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("how", ["iid", "dirichlet:0.5", "shards:2"])
def test_another_seed_gives_another_split(how: str) -> None:
    first, second = split(TEN, 10, how, 0), split(TEN, 10, how, 1)
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_iid_shares_differ_by_at_most_one_record() -> None:
    sizes = [len(part) for part in split(TEN, 7, "iid", 0)]
    assert (min(sizes), max(sizes)) == (142, 143)


def test_iid_gives_each_label_to_each_client_alike_and_dirichlet_does_not() -> None:
    def p_value(how: str) -> float:
        counts = np.sum([summary(TEN, split(TEN, 5, how, seed), 10)["counts"][0] for seed in range(40)], axis=0)
        return float(chisquare(counts).pvalue)

    assert p_value("iid") > 1e-3
    assert p_value("dirichlet:0.5") < 1e-6


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_dirichlet_shares_of_two_clients_follow_the_beta_law_and_no_other(alpha: float) -> None:
    labels = np.zeros(2000, np.int64)
    shares = [len(split(labels, 2, f"dirichlet:{alpha}", seed)[0]) / 2000 for seed in range(600)]
    assert kstest(shares, beta(alpha, alpha).cdf).pvalue > 1e-3
    assert kstest(shares, beta(2 * alpha, 2 * alpha).cdf).pvalue < 1e-3
    assert kstest(shares, beta(alpha / 2, alpha / 2).cdf).pvalue < 1e-3


def test_dirichlet_shares_are_rounded_to_the_nearest_record() -> None:
    parts = split(np.repeat([0, 1], 100), 4, "dirichlet:1e6", 0)  # shares of 1/4 up to a few parts in ten thousand
    assert [len(part) for part in parts] == [50] * 4


def test_dirichlet_shares_of_different_labels_are_independent() -> None:
    labels = np.repeat([0, 1], 1000)
    shares = np.array([summary(labels, split(labels, 2, "dirichlet:1", s), 2)["counts"][0] for s in range(600)])
    assert abs(np.corrcoef(shares.T)[0, 1]) < 4 / np.sqrt(600)


def test_a_small_alpha_gives_clients_few_labels_and_a_large_one_all() -> None:
    few = summary(TEN, split(TEN, 10, "dirichlet:0.01", 0), 10)
    all_of_them = summary(TEN, split(TEN, 10, "dirichlet:1000", 0), 10)
    assert few["labels_median"] <= 3
    assert all_of_them["labels_min"] == 10


def test_a_client_that_drew_nothing_takes_a_record_from_the_largest() -> None:
    parts = split(TEN, 1000, "dirichlet:0.01", 3)  # one record for each client is all there is
    assert [len(part) for part in parts] == [1] * 1000


def test_shards_have_equal_size_and_few_labels() -> None:
    facts = summary(TEN, split(TEN, 50, "shards:2", 0), 10)
    assert (facts["size_min"], facts["size_max"]) == (20, 20)
    assert facts["labels_max"] == 2  # each shard of 10 lies within one label


def test_shards_are_dealt_at_random() -> None:
    labels = np.repeat([0, 1], 4)
    same = sum(summary(labels, split(labels, 2, "shards:1", seed), 2)["counts"][0][0] > 0 for seed in range(400))
    assert chisquare([same, 400 - same]).pvalue > 1e-3


def test_a_summary_counts_records_and_labels_in_json_values() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2])
    parts = [np.array([0, 1, 2]), np.array([3]), np.array([4, 5])]
    expected = {
        "clients": 3,
        "records": 6,
        "size_min": 1,
        "size_median": 2.0,
        "size_max": 3,
        "labels_min": 1,
        "labels_median": 1.0,
        "labels_max": 2,
        "counts": [[2, 1, 0, 0], [0, 0, 1, 0], [0, 0, 2, 0]],
    }
    assert summary(labels, parts, 4) == expected
    assert json.loads(json.dumps(summary(labels, parts, 4))) == expected


@pytest.mark.parametrize(
    ("clients", "how", "message"),
    [
        (10, "even", r"partition must be iid, dirichlet:ALPHA or shards:COUNT, got partition='even'"),
        (10, "iid:", "partition must be iid"),
        (10, "iid:1", "partition must be iid"),
        (10, "", "partition must be iid"),
        (10, "dirichlet", "with a number ALPHA, got partition='dirichlet'"),
        (10, "dirichlet:a", "with a number ALPHA, got partition='dirichlet:a'"),
        (10, "dirichlet:0", "dirichlet must be > 0, got dirichlet=0"),
        (10, "dirichlet:nan", "dirichlet must be finite"),
        (10, "dirichlet:1e7", r"dirichlet must be at most 1e\+06, got dirichlet=1e\+07"),
        (10, "shards", "with an integer COUNT, got partition='shards'"),
        (10, "shards:2.5", "with an integer COUNT, got partition='shards:2.5'"),
        (10, "shards:-1", "with an integer COUNT"),
        (10, "shards:0", "shards must be >= 1, got shards=0"),
        (10, "shards:101", "shards must be at most 100 for 10 clients and 1000 records, got shards=101"),
        (0, "iid", "clients must be >= 1, got clients=0"),
        (1001, "iid", "clients must be at most the number of records, 1000, got clients=1001"),
    ],
)
def test_a_wrong_partition_is_refused(clients: int, how: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        split(TEN, clients, how, 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="seed must be >= 0, got seed=-1"):
        split(TEN, 2, "iid", -1)


@pytest.mark.parametrize("labels", [np.zeros((2, 2), np.int64), np.zeros(4), np.array([0, -1])])
def test_wrong_labels_are_refused(labels: NDArray[np.int64]) -> None:
    with pytest.raises(ArgumentError, match="labels must be a list of integers >= 0"):
        split(labels, 2, "iid", 0)


def test_a_summary_with_too_few_classes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="labels must be < classes=9, got one of 9"):
        summary(TEN, split(TEN, 2, "iid", 0), 9)
