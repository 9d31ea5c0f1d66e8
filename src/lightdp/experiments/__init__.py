"""Measurements: settings in, records out."""
