"""Property tests draw the same examples every time and never fail for being slow."""

from hypothesis import settings

settings.register_profile("lightdp", deadline=None, derandomize=True)
settings.load_profile("lightdp")
