"""What several test files share: oracles, parties, grids, small runs."""
