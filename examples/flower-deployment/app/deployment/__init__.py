"""Private training on real SuperNodes."""
