"""Makes the archive of interpreter and packages for a broker's host, or for a cluster's."""

from reput.next_command import MANIFEST
from reput.pack.archive import Packed, PackOptions, pack

__all__ = ["MANIFEST", "PackOptions", "Packed", "pack"]
