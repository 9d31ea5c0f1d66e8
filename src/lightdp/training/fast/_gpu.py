"""The kernels, where triton is installed (with torch for CUDA, and a compiler); elsewhere None."""

try:
    from lightdp.training.fast import _kernels as kernels
    from lightdp.training.fast import _norms as norms
except ImportError:
    kernels = norms = None  # type: ignore[assignment]

__all__ = ["kernels", "norms"]
