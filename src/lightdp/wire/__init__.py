"""The wire (W1): `rotation` spreads vectors, `packing` makes bytes of integers, `messages` wraps them in envelopes."""

from lightdp.wire.digests import digest
from lightdp.wire.messages import NO_ROSTER, NOBODY, UNBOUND, VERSION, Announcement, Kind, Message, Upload, tag_of
from lightdp.wire.packing import Accumulator, encode, packed_size
from lightdp.wire.rotation import Rotation

__all__ = [
    "NOBODY",
    "NO_ROSTER",
    "UNBOUND",
    "VERSION",
    "Accumulator",
    "Announcement",
    "Kind",
    "Message",
    "Rotation",
    "Upload",
    "digest",
    "encode",
    "packed_size",
    "tag_of",
]
