"""Federated learning that stays private against its own server."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lightdp.planning import Plan, plan

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Plan", "plan"]


def __getattr__(name: str) -> ModuleType:
    """`lightdp.flower`, imported when it is asked for: it needs an extra."""
    if name == "flower":
        return importlib.import_module("lightdp.flower")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
