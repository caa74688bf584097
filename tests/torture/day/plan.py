"""What happens in a day, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass

TAIL_STOPPED, TAIL_KILLED = "tail stopped", "tail killed"
STORE_STOPPED, STORE_KILLED = "store stopped", "store killed"
CUT, FULL_DISK = "log cut", "disk full"
KINDS = (TAIL_STOPPED, TAIL_KILLED, STORE_STOPPED, STORE_KILLED, CUT, FULL_DISK)

#: Between these shares of the messages only segments expire: one tail lives through all of it.
_QUIET = (0.30, 0.76)
_FIRST, _LAST = 0.05, 0.97


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens when so many messages were fed."""

    at: int
    kind: str


def plan(messages: int, each: int, chance: random.Random) -> list[Event]:
    """Each kind of event so many times, in any order, at any moments outside the quiet stretch."""
    kinds = [kind for kind in KINDS for _ in range(each)]
    chance.shuffle(kinds)
    early = (len(kinds) + 1) // 2
    places = []
    for count, (low, high) in ((early, (_FIRST, _QUIET[0])), (len(kinds) - early, (_QUIET[1], _LAST))):
        step = (high - low) / max(count, 1)
        places += [low + step * (number + chance.uniform(0.2, 0.8)) for number in range(count)]
    return [Event(int(place * messages), kind) for place, kind in zip(places, kinds, strict=True)]
