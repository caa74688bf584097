"""Message ids: where the message is, written as hexadecimal digits.

A broker's id (``offsetMsgId``) is its own address, IPv4 or IPv6, a port of four bytes, and the message's
physical offset. A client's id (UNIQ_KEY) has the same lengths but doesn't contain the offset. Source:
``MessageDecoder.createMessageId`` and ``decodeMessageId``, ``MessageClientIDSetter`` (rocketmq-all-4.9.7,
5.3.3).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from ipaddress import ip_address

from reput.errors import SettingsError

_PLACE = struct.Struct(">iq")
_V4_DIGITS = 2 * (4 + _PLACE.size)
_V6_DIGITS = 2 * (16 + _PLACE.size)
_HEX = re.compile(r"[0-9a-fA-F]*", re.ASCII)
_MOST_PORT = 0xFFFF


@dataclass(frozen=True, slots=True)
class MessageId:
    """A broker's id of a message.

    Attributes:
        address: of the broker, IPv4 or IPv6 in text form.
        port: of the broker, 0 to 65535.
        physical_offset: of the message.
    """

    address: str
    port: int
    physical_offset: int

    def encode(self) -> str:
        """32 digits with an IPv4 address, 56 with an IPv6 address."""
        packed = ip_address(self.address).packed
        return (packed + _PLACE.pack(self.port, self.physical_offset)).hex().upper()

    @classmethod
    def decode(cls, text: str) -> MessageId:
        """Decode an id.

        Raises:
            SettingsError: it isn't a broker's id; the error says why.
        """
        if _HEX.fullmatch(text) is None:
            raise _malformed(text, "another character")
        if len(text) not in (_V4_DIGITS, _V6_DIGITS):
            raise _malformed(text, f"{len(text)} digits")
        data = bytes.fromhex(text)
        port, physical_offset = _PLACE.unpack(data[-_PLACE.size :])
        if not 0 <= port <= _MOST_PORT:
            raise _malformed(text, f"{port} where a port should be", _CLIENT_STEP)
        if physical_offset < 0:
            raise _malformed(text, f"a physical offset of {physical_offset}", _CLIENT_STEP)
        return cls(str(ip_address(data[: -_PLACE.size])), port, physical_offset)


_CLIENT_STEP = "If it is the id that the client printed, give --topic, too: then the index is searched"


def _malformed(text: str, found: str, next_step: str | None = None) -> SettingsError:
    return SettingsError(
        f"{text!r} isn't a broker's message id",
        expected=f"{_V4_DIGITS} or {_V6_DIGITS} hexadecimal digits: address, port, physical offset",
        found=found,
        next_step=next_step,
    )
