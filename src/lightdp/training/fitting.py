"""Settings that follow from data with clients of their own: how many there are, and what is sensible for so few.

>>> from lightdp.training import data
>>> config = fitted(Config(data="heart"), data.load("heart"), given=["data"])
>>> config.clients, config.colluders, config.stragglers, config.rounds
(4, 1, 1, 20)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from lightdp.training.config import Config
from lightdp.training.data import Dataset

_SUGGESTED: dict[str, dict[str, Any]] = {"heart": {"rounds": 20, "lr": 0.06}}  # chosen by benchmarks/heart.py


def fitted(config: Config, source: Dataset, given: Collection[str]) -> Config:
    """The settings, with those that nobody gave as the clients of the data want them.

    All clients take part. Of N clients, N/5 may collude and N/5 may miss a round, and one of each where N is 4 to 9;
    of 3 one may collude, of 2 none.

    Args:
        config: the settings.
        source: the data that they name.
        given: the settings that were given; they stay, and `Run` refuses what contradicts the data.
    """
    count = len(source.client_names)
    if config.partition != "natural" or count == 0:
        return config
    follow: dict[str, Any] = dict(_SUGGESTED.get(config.data, {}))
    if config.population is None:
        few = max(count // 5, 1 if count > 3 else 0)
        follow |= {"clients": count, "colluders": 1 if count == 3 else few, "stragglers": few}
    return dataclasses.replace(config, **{name: value for name, value in follow.items() if name not in given})
