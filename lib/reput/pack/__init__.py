"""Makes the archive of interpreter and packages that Spark unpacks on a cluster's hosts."""

from reput.pack.run import MANIFEST, Packed, PackOptions, pack

__all__ = ["MANIFEST", "PackOptions", "Packed", "pack"]
