"""The nodes of a SQL92 expression and their slow, obvious evaluation: three-valued, with Java's conversions.

A node's :meth:`~Node.value` is True, False, None (unknown, or a property that the message lacks), a string or
a number. What a broker logs as an error of the evaluation is an :class:`EvaluationError` here.

Source: ``org.apache.rocketmq.filter.expression`` (rocketmq-all-4.9.7 and 5.3.3): ``ComparisonExpression``,
``LogicExpression``, ``UnaryExpression``, ``UnaryInExpression``, ``PropertyExpression``,
``ConstantExpression``, ``BooleanConstantExpression``.

A property's value is a Java string, and an expression compares it with constants of the classes String,
Integer, Long, Double and Boolean. Here they are :class:`str` (one character for each UTF-16 code unit),
:class:`int`, :class:`Long`, :class:`float` and :class:`bool`.

Source: ``Integer.parseInt``, ``Long.parseLong``, ``Double.valueOf``, ``Double.compareTo`` (OpenJDK 17).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.format.javastring import integer_of, utf16_units

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``String.trim`` takes away every character up to the space.
_WHITE = "".join(map(chr, range(0x21)))
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII
)
_NAMED = {
    "NaN": math.nan,
    "+NaN": math.nan,
    "-NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
}


class Long(int):
    """A ``java.lang.Long``; a plain int is an ``Integer``."""

    __slots__ = ()


class NumberFormatError(ValueError):
    """Java's NumberFormatException."""


def text_of(data: bytes) -> str:
    """``new String(data, UTF_8)``, a character for each UTF-16 code unit."""
    if data.isascii():
        return data.decode("ascii")
    return "".join(map(chr, utf16_units(data)))


def units_of(text: str) -> str:
    """A Python string with characters beyond the BMP as two surrogates, as Java has them."""
    if not text or max(text) <= "\uffff":
        return text
    data = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(data[at] << 8 | data[at + 1]) for at in range(0, len(data), 2))


def integer(text: str, bits: int) -> int:
    """``Integer.valueOf`` (32 bits) or ``Long.valueOf`` (64) of a text; digits of any script count.

    Raises NumberFormatError for anything else.
    """
    value = integer_of(map(ord, text), bits)
    if value is None:
        raise NumberFormatError(text)
    return value


def double(text: str) -> float:
    """``Double.valueOf`` of a text, or NumberFormatError."""
    trimmed = text.strip(_WHITE)
    named = _NAMED.get(trimmed)
    if named is not None:
        return named
    number = trimmed[:-1] if trimmed[-1:] in ("f", "F", "d", "D") else trimmed
    if _DECIMAL.fullmatch(number):
        return float(number)
    # The last hexadecimal digits are an exponent's, and those are decimal, so that a D or an F is a suffix.
    if _HEXADECIMAL.fullmatch(number):
        try:
            return float.fromhex(number)
        except OverflowError:
            return -math.inf if number[0] == "-" else math.inf
    raise NumberFormatError(text)


def compare_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: -0.0 is below 0.0, NaN above all and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    one, other = _rank(left), _rank(right)
    return (one > other) - (one < other)


def _rank(value: float) -> int:
    if math.isnan(value):
        return 1
    return -1 if value == 0 and math.copysign(1.0, value) < 0 else 0


Value = bool | int | float | str | None
"""True, False, an Integer, a :class:`~reput.build.grammar.Long`, a Double, a String, or null."""


class EvaluationError(ValueError):
    """The evaluation throws in Java: the broker logs it and takes the result for null."""


class Node(ABC):
    """A part of an expression.

    Attributes:
        boolean: it is a ``BooleanExpression``: its value is True, False or None.
    """

    __slots__ = ()
    boolean = True

    @abstractmethod
    def value(self, properties: Mapping[str, str]) -> Value:
        """The value for these properties, whose characters are UTF-16 code units.

        Raises:
            EvaluationError: it throws in Java.
        """

    @abstractmethod
    def names(self) -> frozenset[str]:
        """The properties that it looks at."""


@dataclass(frozen=True, slots=True)
class Property(Node):
    """A property's value, null when the message lacks it."""

    name: str
    boolean = False

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        return properties.get(self.name)

    def names(self) -> frozenset[str]:
        """See :class:`Node`."""
        return frozenset((self.name,))


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A string or a number."""

    constant: Value
    boolean = False

    def value(self, properties: Mapping[str, str]) -> Value:  # noqa: ARG002
        """See :class:`Node`."""
        return self.constant

    def names(self) -> frozenset[str]:
        """See :class:`Node`."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class BooleanConstant(Constant):
    """TRUE, FALSE or NULL."""

    boolean = True


NULL = BooleanConstant(None)


@dataclass(frozen=True, slots=True)
class _Unary(Node):
    operand: Node

    def names(self) -> frozenset[str]:
        return self.operand.names()


@dataclass(frozen=True, slots=True)
class Negate(_Unary):
    """``-``: of a number; of anything else, a property's text included, it is null."""

    boolean = False

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        value = self.operand.value(properties)
        if value is None or isinstance(value, bool | str):
            return None
        # No Integer or Long here is the smallest of its class: literals have no sign.
        return Long(-value) if isinstance(value, Long) else -value


@dataclass(frozen=True, slots=True)
class Cast(_Unary):
    """A property where a condition is asked for: False, for its value is a text, or null."""

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        return None if self.operand.value(properties) is None else False


@dataclass(frozen=True, slots=True)
class Not(_Unary):
    """``NOT``: null stays null."""

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        value = self.operand.value(properties)
        return None if value is None else not value


@dataclass(frozen=True, slots=True)
class _Several(Node):
    operands: tuple[Node, ...]

    def names(self) -> frozenset[str]:
        return frozenset().union(*(operand.names() for operand in self.operands))


@dataclass(frozen=True, slots=True)
class And(_Several):
    """``AND`` of two or more; what stands after the first False isn't evaluated."""

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        result: Value = True
        for operand in self.operands:
            value = operand.value(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class Or(_Several):
    """``OR`` of two or more; what stands after the first True isn't evaluated."""

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        result: Value = False
        for operand in self.operands:
            value = operand.value(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result


@dataclass(frozen=True, slots=True)
class Equal(Node):
    """``=``, and with NULL on the right ``IS NULL``.

    Null on the left alone makes it null, null on the right alone False, null on both sides True.
    """

    left: Node
    right: Node

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        left, right = self.left.value(properties), self.right.value(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        return _compare(left, right) == 0

    def names(self) -> frozenset[str]:
        """See :class:`Node`."""
        return self.left.names() | self.right.names()


@dataclass(frozen=True, slots=True)
class Order(Node):
    """``<``, ``<=``, ``>`` or ``>=`` of numbers; two texts have to be doubles, and are compared as such."""

    operator: str
    left: Node
    right: Node

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        left = self.left.value(properties)
        if left is None:
            return None
        right = self.right.value(properties)
        if right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):
            try:
                left, right = double(left), double(right)
            except NumberFormatError as error:
                raise EvaluationError(
                    f"strings can't be compared by {self.operator}: {left!r}, {right!r}"
                ) from error
        answer = _compare(left, right)
        if self.operator == "<":
            return answer < 0
        if self.operator == "<=":
            return answer <= 0
        return answer > 0 if self.operator == ">" else answer >= 0

    def names(self) -> frozenset[str]:
        """See :class:`Node`."""
        return self.left.names() | self.right.names()


@dataclass(frozen=True, slots=True)
class In(Node):
    """``IN`` and ``NOT IN``: a property is one of these texts, or none of them."""

    name: str
    elements: frozenset[str]
    negated: bool

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        value = properties.get(self.name)
        return None if value is None else (value in self.elements) != self.negated

    def names(self) -> frozenset[str]:
        """See :class:`Node`."""
        return frozenset((self.name,))


@dataclass(frozen=True, slots=True)
class Part(_Unary):
    """``CONTAINS``, ``STARTSWITH``, ``ENDSWITH`` and their negations: never null.

    An empty search, and an operand that isn't a text, make both the test and its negation False.
    """

    operator: str
    search: str
    negated: bool

    def value(self, properties: Mapping[str, str]) -> Value:
        """See :class:`Node`."""
        if not self.search:
            return False
        value = self.operand.value(properties)
        if not isinstance(value, str):
            return False
        if self.operator == "CONTAINS":
            found = self.search in value
        elif self.operator == "STARTSWITH":
            found = value.startswith(self.search)
        else:
            found = value.endswith(self.search)
        return found != self.negated


def compare_numbers(left: int | float, right: int | float) -> int:
    """``compareTo`` after conversion: as doubles when one is a Double, else as whole numbers."""
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _compare(left: bool | int | float | str, right: bool | int | float | str) -> int:
    """``ComparisonExpression.__compare``; of different classes, a string becomes what the other one is."""
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bool):
        if isinstance(right, str):
            # Boolean.valueOf is called with the wrong one of the two.
            raise EvaluationError(f"a Boolean can't be cast to a String: {left}")
        # Other classes than Boolean count as different.
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, bool):
        if isinstance(left, str):
            return (left.lower() == "true") - right
        return -1
    return compare_numbers(
        left if not isinstance(left, str) else _converted(left, right),
        right if not isinstance(right, str) else _converted(right, left),
    )


def _converted(text: str, like: int | float | str) -> int | float:
    try:
        if isinstance(like, float):
            return double(text)
        return integer(text, 64 if isinstance(like, Long) else 32)
    except NumberFormatError as error:
        raise EvaluationError(f"not a number of the other side's class: {text!r}") from error
