"""The inner loop of lightdp.stream, twice: compiled, and in numpy where the compiled one is missing."""
