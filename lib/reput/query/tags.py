"""Tag expressions: ``*``, or tags with ``||`` between them.

Source: ``FilterAPI.buildSubscriptionData``, ``DefaultMessageFilter.isMatchedByConsumeQueue``,
``PullAPIWrapper.processPullResult`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from reput.errors import SettingsError
from reput.format import javastring

_ALL = "*"
# What String.trim removes: every character up to the space.
_JAVA_WHITE = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which messages a subscription wants.

    Attributes:
        tags: the tags; None for all messages.
        codes: their hashes.
    """

    tags: frozenset[str] | None = None
    codes: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """Parse an expression; None, an empty one and ``*`` mean all messages.

        Raises:
            SettingsError: it names no tag.
        """
        if not expression or expression == _ALL:
            return cls()
        words = {word.strip(_JAVA_WHITE) for word in expression.split("||")} - {""}
        if not words:
            raise SettingsError(
                "the tag expression names no tag", expected="'*', 'A' or 'A || B'", found=repr(expression)
            )
        hashes = (javastring.hash_code(word.encode("utf-8", "replace")) for word in words)
        return cls(frozenset(words), frozenset(hashes))

    def wants_code(self, tags_code: int | None) -> bool:
        """The broker's check of a unit: whether its hash fits. One that can't be read does."""
        if self.tags is None or tags_code is None:
            return True
        code = tags_code & 0xFFFF_FFFF
        return (code - (1 << 32) if code >> 31 else code) in self.codes

    def wants(self, tags: str | None) -> bool:
        """The client's check of a message from the broker: whether its tag is one of those."""
        return self.tags is None or (tags is not None and tags in self.tags)
