"""Which machine saved a client's state, in which boot: a copy that goes on elsewhere is noticed by it.

| the state was saved | here it is | why |
| --- | --- | --- |
| on a machine with the same id | at home, also after a reboot | a node that restarts is the usual case |
| on a machine with another id | moved | the original may still run, and would answer the same rounds |
| where no id is known, in this boot | at home | no two machines share a boot; containers of one host do |
| where no id is known, in another boot | moved | a reboot and another machine look alike |
| where neither is known, as here | at home | nothing can be noticed |

What cannot be noticed here: a clone or a snapshot of a whole machine keeps its id, and so do containers of an image
that has one. Containers of one host without an id share the boot of its kernel: a copy in a second one looks at home,
and a container that is made again on its own host must look so too, or no restart would go on.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lightdp.errors import ProtocolError

_LOG = logging.getLogger("lightdp")
_MACHINE = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT = ("/proc/sys/kernel/random/boot_id",)


@dataclass(frozen=True)
class Host:
    """A machine and its boot, as 32 hexadecimal digits each, or None where the system does not tell.

    The digits are hashes: ids of machines are not to be shown to others.

    >>> Host("a", "1").same(Host("a", "2"))  # after a reboot
    True
    >>> Host("a", "1").same(Host("b", "1")), Host(None, "1").same(Host(None, "2"))
    (False, False)
    """

    machine: str | None
    boot: str | None

    @classmethod
    @lru_cache(maxsize=1)
    def here(cls) -> Host:
        """This machine, in this boot."""
        return cls(_identity("machine", _MACHINE), _identity("boot", _BOOT))

    def refuse_elsewhere(self) -> None:
        """Refuse to go on from a state that this machine saved, if it is not the one where the program runs.

        Raises:
            ProtocolError: it is another machine, as far as can be told.
        """
        here = Host.here()
        if not self.same(here):
            raise ProtocolError(
                "the state was saved on another machine, or before a reboot of one without a machine id: "
                "say moved=True if nothing else uses it or a copy of it, or enrol anew"
            )
        if self.boot != here.boot:
            _LOG.info("lightdp: the state was saved before this boot; no copy of it may be in use elsewhere")

    def same(self, other: Host) -> bool:
        """Whether both are one machine, as far as can be told."""
        if self.machine is not None and other.machine is not None:
            return self.machine == other.machine
        if self.boot is not None and other.boot is not None:
            return self.boot == other.boot
        return self == other


def _identity(what: str, paths: tuple[str, ...]) -> str | None:
    for path in paths:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text not in {"", "uninitialized"}:  # as systemd writes it before the first boot has ended
            return hashlib.sha256(f"lightdp/1 {what} {text}".encode()).hexdigest()[:32]
    return None
