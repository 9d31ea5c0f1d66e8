"""Federated learning that stays private against its own server."""

from lightdp.design import Plan, plan

__all__ = ["Plan", "plan"]
