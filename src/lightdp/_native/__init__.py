"""The inner loops of `lightdp.stream` and `lightdp.wire`: compiled, where installed with a compiler, and in numpy."""

try:
    from lightdp._native import kernel
except ImportError:
    kernel = None  # type: ignore[assignment]
