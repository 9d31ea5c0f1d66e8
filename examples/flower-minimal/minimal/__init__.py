"""The least private Flower app, to copy."""
