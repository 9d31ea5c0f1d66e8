"""The compiled kernel of lightdp.stream: one abi3 file, optional (numpy makes the same samples)."""

from pathlib import Path

from setuptools import Extension, setup

KERNEL = Extension(
    "lightdp._native.kernel",
    ["src/lightdp/_native/kernel.c"],
    depends=[str(path) for path in sorted(Path("src/lightdp/_native").glob("*.h"))],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    # Bit-equal samples forbid contraction to fused multiply-add; nothing like -ffast-math may be added.
    extra_compile_args=["-O3", "-ffp-contract=off"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[KERNEL], options={"bdist_wheel": {"py_limited_api": "cp311"}})
