"""Federated learning that stays private against its own server."""
