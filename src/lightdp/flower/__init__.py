"""Flower: any app on its message API becomes private against its own server."""
