"""A Python for another processor, out of Debian's packages, to be run by qemu; nothing is installed on this machine.

    python release/foreign.py bookworm arm64 build/arm64 python3.11-minimal libpython3.11-stdlib
    qemu-aarch64 -L build/arm64 build/arm64/usr/bin/python3.11

Needs apt and dpkg, whose list of trusted keys verifies what is fetched (Debian: debian-archive-keyring).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def fetch(release: str, architecture: str, folder: Path, packages: list[str]) -> None:
    """Unpack Debian packages of an architecture, with all that they depend on, into a folder.

    Args:
        release: of Debian.
        architecture: in Debian's words, such as arm64 or s390x.
        folder: made if there is none.
        packages: their names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        own.chmod(0o755)  # apt reads it as a user of its own
        for each in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d"):
            (own / each).mkdir(parents=True)
        (own / "state" / "status").touch()  # nothing is installed
        source = f"deb [signed-by={KEYS}] http://deb.debian.org/debian {release} main\n"
        (own / "etc" / "sources.list").write_text(source)
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
            "Dir::State": own / "state",
            "Dir::State::status": own / "state" / "status",
            "Dir::Cache": own / "cache",
            "Dir::Etc": own / "etc",
        }
        apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
        wanted = ["install", "--yes", "--download-only", "--no-install-recommends", *packages]
        for command in (["update"], wanted):
            subprocess.run([*apt, *command], check=True, stdout=subprocess.DEVNULL)
        for package in sorted((own / "cache" / "archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)
    for name in ("bin", "lib", "lib64"):  # links that Debian makes when it is installed
        if not (folder / name).exists():
            (folder / name).symlink_to(f"usr/{name}")


if __name__ == "__main__":
    fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
