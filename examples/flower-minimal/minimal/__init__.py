"""A minimal private Flower app, to copy."""
