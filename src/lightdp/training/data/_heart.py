"""Heart disease at four hospitals, embedded: 740 patients, each at one hospital, ten measurements and a diagnosis.

The files of the UCI repository (CC BY 4.0, see heart/ATTRIBUTION.md) lie beside this module. As in FLamby's
Fed-Heart-Disease, the first ten columns are used, patients with a missing value among them are left out, and a third of
each hospital's patients is held out. Unlike there, features are scaled by public bounds (heart/columns.toml), never by
means and deviations of the patients.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np

from lightdp.training.data import _columns, _own
from lightdp.training.data._made import Dataset

_FOLDER = Path(__file__).with_name("heart")
_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_HELD_OUT = 0.34  # as FLamby
_LABEL, _CLIENT = "diagnosis", "hospital"


def load(layout: _own.Layout) -> Dataset:
    """The data; of `layout`, the share that is held out counts."""
    features = _columns.read(_FOLDER / "columns.toml")
    names = [name for name in features if name != _LABEL]
    rows = []
    for hospital in _HOSPITALS:
        with (_FOLDER / f"processed.{hospital}.data").open(encoding="ascii", newline="") as file:
            for *cells, diagnosis in csv.reader(file):
                measured = cells[: len(names)]
                if "?" not in measured:
                    rows.append([*measured, "healthy" if diagnosis == "0" else "sick", hospital])
    columns = zip(*rows, strict=True)
    table = {name: np.array(cells) for name, cells in zip([*names, _LABEL, _CLIENT], columns, strict=True)}
    fraction = _HELD_OUT if layout.test_fraction is None else layout.test_fraction
    chosen = _own.Layout(label=_LABEL, client_column=_CLIENT, test_fraction=fraction)
    found = _own.dataset("heart", chosen, table, features)
    return dataclasses.replace(found, notes=())
