"""Which host a process is on, told by what names it from outside: an address or a name."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

#: Named in a datagram's destination; none is sent.
_ANY_PORT = 9


def addresses(host: str) -> frozenset[str]:
    """The addresses that a name has on this host, or the address that it is; no loopback ones.

    A host's own name often leads to 127.0.1.1, which is another host for each that asks.
    """
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)}
    except (OSError, UnicodeError):
        return frozenset()
    told = {ipaddress.ip_address(one.partition("%")[0]) for one in found}
    return frozenset(str(one) for one in told if not one.is_loopback and not one.is_unspecified)


@dataclass(frozen=True, slots=True)
class HostMark:
    """What one host can be told by.

    Attributes:
        name: as it was named, in lower case.
        addresses: of one of its interfaces; empty if only its own name tells it.
    """

    name: str
    addresses: frozenset[str]

    @property
    def is_here(self) -> bool:
        """Whether this process is on that host."""
        if self.addresses:
            return any(map(_is_own, self.addresses))
        return socket.gethostname().lower() == self.name


def _is_own(address: str) -> bool:
    """Whether an address is one of this host's: what is sent there would come from there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))
            source = str(probe.getsockname()[0])
        except OSError:  # no way leads there
            return False
    return ipaddress.ip_address(source.partition("%")[0]) == ipaddress.ip_address(address)
