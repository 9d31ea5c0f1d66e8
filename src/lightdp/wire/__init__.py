"""The wire (W1): `packing` puts vectors of integers into bytes, `messages` puts those into envelopes."""

from lightdp.wire.messages import NO_ROSTER, NOBODY, VERSION, Announcement, Kind, Message, Upload
from lightdp.wire.packing import Accumulator, encode, packed_size

__all__ = [
    "NOBODY",
    "NO_ROSTER",
    "VERSION",
    "Accumulator",
    "Announcement",
    "Kind",
    "Message",
    "Upload",
    "encode",
    "packed_size",
]
