"""What a store shows of the settings and of the release that it was written with.

Only what lies in the store counts: lengths of files, headers, a bounded sample of index entries and of the
records that they lead to. Nothing here raises: what can't be read is no evidence, and is said.
"""

from reput.config.evidence.basis import Asked, Basis, Contradiction, Evidence, Weighing, Writes, look
from reput.config.evidence.files import Sizes
from reput.config.evidence.release import Mark, Release

__all__ = [
    "Asked",
    "Basis",
    "Contradiction",
    "Evidence",
    "Mark",
    "Release",
    "Sizes",
    "Weighing",
    "Writes",
    "look",
]
