"""A broker's own SQL92 filters, Bloom filter and bit maps, asked much in one call (``Filters.java``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from struct import pack, unpack_from

from tests.compat.compiled import instance
from tests.compat.jvm import Jvm

_SOURCE = Path(__file__).with_name("Filters.java")


class JavaFilters:
    """The filter classes of the release that a JVM runs."""

    def __init__(self, jvm: Jvm) -> None:
        self.version = jvm.version
        self._filters = instance(jvm, _SOURCE)

    def evaluate(self, questions: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> list[str]:
        """Of each expression ``P`` when it is refused, else T, F, N (null) or E (throws) of each message."""
        data = [pack(">i", len(questions))]
        for expression, messages in questions:
            data += [_string(expression), pack(">i", len(messages))]
            for properties in messages:
                data.append(pack(">i", len(properties)))
                for name, value in properties.items():
                    data += [_string(name), _string(value)]
        answers = str(self._filters.evaluate(b"".join(data))).split("\n")[:-1]
        assert len(answers) == len(questions)
        return answers

    def positions(
        self, error_rate: int, consumers: int, names: Sequence[str]
    ) -> tuple[int, int, list[list[int]]]:
        """``k``, ``m`` and the bit positions of each name."""
        data = pack(">i", len(names)) + b"".join(map(_string, names))
        head, *lines = str(self._filters.positions(error_rate, consumers, data)).split("\n")[:-1]
        hashes, bits = map(int, head.split())
        return hashes, bits, [list(map(int, line.split())) for line in lines]

    def bit_maps(
        self, error_rate: int, consumers: int, json: str, messages: Iterable[tuple[str, bytes]]
    ) -> list[bytes | None] | None:
        """The bit map of each message (topic, property bytes); None in all when the JSON can't be loaded."""
        listed = list(messages)
        data = pack(">i", len(listed)) + b"".join(
            _string(topic) + pack(">i", len(properties)) + properties for topic, properties in listed
        )
        answer = bytes(self._filters.bitMaps(error_rate, consumers, json, data))
        if listed and not answer:
            return None
        found: list[bytes | None] = []
        at = 0
        while at < len(answer):
            (size,) = unpack_from(">i", answer, at)
            at += 4
            found.append(None if size < 0 else answer[at : at + size])
            at += max(size, 0)
        return found


def _string(text: str) -> bytes:
    data = text.encode("utf-16-be", "surrogatepass")
    return pack(">i", len(data) // 2) + data
