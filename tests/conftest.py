"""Property tests draw the same examples every time and never fail for being slow; fixtures that several files share."""

from hypothesis import settings

pytest_plugins = [
    "support.command_line",
    "support.flower_tape",
    "support.pages",
    "support.parties",
    "support.run_logs",
    "support.slow",
]  # modules of fixtures, loaded for every test: they must not need an extra

settings.register_profile("lightdp", deadline=None, derandomize=True)
settings.load_profile("lightdp")
