"""The mean as one reply for the inner strategy, and the metrics of each upload for its `train_metrics_aggr_fn`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from lightdp.flower._settings import LOG

Metrics = dict[str, Any]

_FUNCTION = "train_metrics_aggr_fn"


def metrics_of(content: RecordDict) -> Metrics:
    """All metrics of a message by their names."""
    records = (each for each in content.values() if isinstance(each, MetricRecord))
    return {name: value for each in records for name, value in each.items()}


class Inner:
    """What the inner strategy gets to aggregate.

    Args:
        strategy: the inner strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._warned = strategy, False

    def content(self, arrays: ArrayRecord, metrics: Sequence[Metrics]) -> RecordDict:
        """One reply of weight 1: the arrays, and the mean of each metric that all uploads have as a number.

        Args:
            arrays: received + mean.
            metrics: of each upload in the sum, as far as they left the node.
        """
        names = [name for name in _shared(metrics) if not any(isinstance(each[name], list) for each in metrics)]
        means = {name: float(np.mean([each[name] for each in metrics])) for name in names}
        weight = getattr(self._strategy, "weighted_by_key", "num-examples")
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({**means, weight: 1.0})})

    @contextmanager
    def each(self, metrics: Sequence[Metrics]) -> Iterator[None]:
        """While this lasts, the strategy's `train_metrics_aggr_fn` sees the metrics of each upload, as in Flower.

        Where a metric is missing in one of them, as all are that `lightdp-allow-metrics` does not name, it is left out
        of all; a missing weight is 1. If the function fails there are no metrics, and the round goes on.
        """
        function = getattr(self._strategy, _FUNCTION, None)
        if function is None:
            yield
            return
        setattr(self._strategy, _FUNCTION, lambda _, weight: self._aggregated(function, metrics, weight))
        try:
            yield
        finally:
            setattr(self._strategy, _FUNCTION, function)

    def _aggregated(self, function: Callable[..., Any], metrics: Sequence[Metrics], weight: str) -> MetricRecord:
        names = _shared(metrics)
        records = [
            RecordDict({"metrics": MetricRecord({weight: 1.0} | {name: each[name] for name in names})})
            for each in metrics
        ]
        try:
            return MetricRecord(dict(function(records, weight) or {})) if records else MetricRecord()
        except Exception as error:  # noqa: BLE001  metrics come from nodes, and their loss costs no model
            if not self._warned:
                LOG.warning(
                    "lightdp: %s failed, and there are no train metrics: %r; of each upload it saw %s: other metrics "
                    "leave a node only if lightdp-allow-metrics names them", _FUNCTION, error, sorted({weight, *names}),
                )  # fmt: skip
            self._warned = True
            return MetricRecord()


def _shared(metrics: Sequence[Metrics]) -> list[str]:
    """Names of metrics that all uploads have, as numbers or as lists of one length."""
    names = set.intersection(*map(set, metrics)) if metrics else set()
    return [name for name in sorted(names) if len({np.shape(each[name]) for each in metrics}) == 1]
