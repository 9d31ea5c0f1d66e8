"""Data files that are damaged, and tests that find none of the user's own."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.errors import ArgumentError
from lightdp.training import data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.delenv(data.VARIABLE, raising=False)


def damaged_or_read(
    good: bytes, where: int, flip: int, *, cut: bool, place: Path, load: Callable[[], data.Dataset]
) -> None:
    where %= len(good)
    place.write_bytes(good[:where] if cut else good[:where] + bytes([flip]) + good[where + 1 :])
    try:
        loaded = load()
    except ArgumentError as error:
        assert "\n" not in str(error)  # noqa: PT017  it need not be raised
    else:
        assert np.isfinite(loaded.train_x).all()


def saved(values: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, values)
    return target.getvalue()
