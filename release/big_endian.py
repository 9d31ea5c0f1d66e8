"""Run the tests of noise, packing and keys on a big-endian processor: s390x under qemu, with Debian's Python and numpy.

    python release/big_endian.py      what `make test-big-endian` runs; Debian package: qemu-user

It takes some minutes. What is fetched is kept in build/s390x.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import foreign

ROOT = Path(__file__).parent.parent
PACKAGES = ["python3", *(f"python3-{name}" for name in ("cryptography", "hypothesis", "numpy", "pytest", "scipy"))]
TESTS = [
    "native/test_native_byte_order.py", "stream/test_stream_specification.py", "stream/test_stream_masked.py",
    "stream/test_stream_sums.py", "stream/test_stream_drawn.py", "wire/test_wire_packing.py",
    "wire/test_wire_payloads.py", "wire/test_wire_rotation.py", "keys/test_keys_derivation.py",
    "keys/test_keys_tree.py", "test_client_set.py",
]  # fmt: skip


def main() -> int:
    """The exit status of the tests."""
    if shutil.which("qemu-s390x") is None:
        sys.exit("qemu-s390x not found; on Debian: apt-get install qemu-user")
    folder = ROOT / "build" / "s390x"
    if not folder.exists():
        part = folder.with_name("s390x.part")
        foreign.fetch("trixie", "s390x", part, PACKAGES)
        part.rename(folder)
    libraries = "/usr/lib/s390x-linux-gnu"
    command = [
        "qemu-s390x", "-L", folder, "-E", f"LD_LIBRARY_PATH={libraries}/blas:{libraries}/lapack",
        "-E", f"PYTHONPATH={ROOT / 'src'}:{ROOT / 'tests'}", "-E", "PYTHONDONTWRITEBYTECODE=1",
        folder / "usr" / "bin" / "python3.13", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
        "-k", "not milliseconds",  # times of an emulator mean nothing
        "-c", "/dev/null", "--noconftest", "--rootdir=tests", "--import-mode=importlib", "--hypothesis-profile=ci",
        *(ROOT / "tests" / name for name in TESTS),
    ]  # fmt: skip
    return subprocess.run([*map(str, command)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
