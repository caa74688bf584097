"""From the text of a SQL92 expression to its nodes, as the broker's JavaCC parser does it.

Three things are particular to that parser:

* It never asks for the end of the text. What follows a whole expression isn't read, but for the next token,
  which has to be one.
* The longest token wins, so that ``00`` is two tokens and ``--`` without an end of line is two signs.
* Operands are checked as the nodes are made: ``a > 'x'`` is no expression at all.

Source: ``SelectorParser.jj`` and ``ComparisonExpression.create…`` (rocketmq-all-4.9.7, 5.1.3 and 5.3.3).
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from reput.build.expression import (
    NULL,
    And,
    BooleanConstant,
    Cast,
    Constant,
    Equal,
    In,
    Long,
    Negate,
    Node,
    Not,
    NumberFormatError,
    Or,
    Order,
    Part,
    Property,
    compare_numbers,
    integer,
    units_of,
)

# lark says little of its interactive parser's types.
# mypy: disable-error-code="no-untyped-call"

#: How deep nodes may be nested: evaluation takes some of Python's stack for each level.
MOST_NESTED = 200

_KEYWORDS = ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS")
_PARTS = ("CONTAINS", "STARTSWITH", "ENDSWITH")

_GRAMMAR = r"""
start: or_expression
?or_expression: and_expression (OR and_expression)*
?and_expression: equality (AND equality)*

?equality: comparison
    | equality "=" comparison                                       -> equal
    | equality "<>" comparison                                      -> not_equal
    | equality IS NULL                                              -> is_null
    | equality IS NOT NULL                                          -> is_not_null

?comparison: unary
    | comparison ORDER unary                                        -> order
    | comparison BETWEEN unary AND unary                            -> between
    | comparison NOT BETWEEN unary AND unary                        -> not_between
    | comparison IN "(" STRING ("," STRING)* ")"                    -> is_in
    | comparison NOT IN "(" STRING ("," STRING)* ")"                -> not_in
    %PARTS%

?unary: "+" unary
    | "-" unary                                                     -> negate
    | NOT unary                                                     -> negation
    | primary

?primary: STRING                                                    -> string
    | DECIMAL                                                       -> decimal
    | FLOATING                                                      -> floating
    | TRUE                                                          -> true
    | FALSE                                                         -> false
    | NULL                                                          -> null
    | ID                                                            -> variable
    | "(" or_expression ")"

ORDER: />=?|<=|<(?!>)/
STRING: /'(?:''|[^'])*'/
FLOATING.3: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL.2: /[1-9][0-9]*[lL]?|0/
ID.1: /[a-zA-Z_$][a-zA-Z0-9_$]*/
LINE_COMMENT.4: /--[^\n\r]*(?:\r\n|\n|\r)/
BLOCK_COMMENT.4: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
WHITE: /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%ignore WHITE
"""


class NotAnExpressionError(ValueError):
    """The broker's parser refuses this text."""


class TooDeepError(ValueError):
    """An expression nested so deeply that a broker's stack, whose size isn't known here, may not bear it."""


def parse(text: str, *, parts: bool) -> Node:
    """The condition that an expression's text stands for.

    With ``parts`` (``Dialect.filter_parts``), CONTAINS, STARTSWITH and ENDSWITH are operators; without it
    they are names of properties. Raises NotAnExpressionError where ``SelectorParser.parse`` throws, and
    TooDeepError.
    """
    parser = _parser(parts)
    tokens: list[Token] = []
    try:
        parsing = parser.parse_interactive(units_of(text))
        try:
            for token in parsing.lexer_thread.lex(parsing.parser_state):
                parsing.feed_token(token)
                tokens.append(token)
            result = parsing.feed_eof()
        except UnexpectedToken as error:
            result = _whole(parser, tokens, error)
    except UnexpectedCharacters as error:
        raise NotAnExpressionError(f"no token at character {error.pos_in_stream}") from error
    except UnexpectedInput as error:
        raise NotAnExpressionError(f"unexpected {_described(error)}") from error
    if not isinstance(result, Node):
        raise TypeError(f"the grammar made a {type(result).__name__}")
    _refuse_depth(result)
    return result


def _whole(parser: Lark, tokens: list[Token], stopped_by: UnexpectedToken) -> Any:
    """What stands before a token that doesn't continue it; the broker's parser stops there without a word."""
    parsing = parser.parse_interactive("")
    for token in tokens:
        parsing.feed_token(token)
    try:
        return parsing.feed_eof()
    except UnexpectedToken:
        raise stopped_by from None


@functools.cache
def _parser(parts: bool) -> Lark:
    keywords = _KEYWORDS + (_PARTS if parts else ())
    rules = "".join(
        f"| comparison {name} STRING -> part\n    | comparison NOT {name} STRING -> not_part\n    "
        for name in (_PARTS if parts else ())
    )
    terminals = "\n".join(f"{name}.2: /{_any_case(name)}(?![a-zA-Z0-9_$])/" for name in keywords)
    return Lark(
        _GRAMMAR.replace("%PARTS%", rules) + terminals + "\n",
        parser="lalr",
        # Which token it is doesn't depend on what is expected.
        lexer="basic",
        transformer=_Nodes(),
        maybe_placeholders=False,
    )


def _any_case(name: str) -> str:
    """A pattern for a keyword; not ``re.IGNORECASE``, for which a long s is an S."""
    return "".join(f"[{letter}{letter.lower()}]" for letter in name)


def _described(error: UnexpectedInput) -> str:
    token = getattr(error, "token", None)
    if token is None or token.type == "$END":
        return "end"
    return f"{str(token)!r} at character {token.start_pos}"


def _refuse_depth(node: Node) -> None:
    level, depth = [node], 0
    while level:
        depth += 1
        if depth > MOST_NESTED:
            raise TooDeepError(f"more than {MOST_NESTED} levels")
        level = [child for parent in level for child in children(parent)]


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below."""
    if isinstance(node, And | Or):
        return node.operands
    if isinstance(node, Equal | Order):
        return node.left, node.right
    if isinstance(node, Negate | Cast | Not | Part):
        return (node.operand,)
    return ()


@v_args(inline=True)
class _Nodes(Transformer[Token, Node]):
    """Makes nodes, and refuses operands as ``ComparisonExpression`` does."""

    def start(self, node: Node) -> Node:
        return _condition(node)

    def or_expression(self, *parts: Any) -> Node:
        return Or(tuple(map(_condition, parts[::2])))

    def and_expression(self, *parts: Any) -> Node:
        return And(tuple(map(_condition, parts[::2])))

    def equal(self, left: Node, right: Node) -> Node:
        return _equal(left, right)

    def not_equal(self, left: Node, right: Node) -> Node:
        return Not(_equal(left, right))

    def is_null(self, left: Node, *_: Token) -> Node:
        return Equal(left, NULL)

    def is_not_null(self, left: Node, *_: Token) -> Node:
        return Not(Equal(left, NULL))

    def order(self, left: Node, operator: Token, right: Node) -> Node:
        return _order(str(operator), left, right)

    def between(self, value: Node, _between: Token, low: Node, _and: Token, high: Node) -> Node:
        return _between_nodes(value, low, high)

    def not_between(
        self, value: Node, _not: Token, _between: Token, low: Node, _and: Token, high: Node
    ) -> Node:
        return Or((_order("<", value, low), _order(">", value, high)))

    def is_in(self, left: Node, _in: Token, *elements: Token) -> Node:
        return _in_node(left, elements, negated=False)

    def not_in(self, left: Node, _not: Token, _in: Token, *elements: Token) -> Node:
        return _in_node(left, elements, negated=True)

    def part(self, left: Node, operator: Token, search: Token) -> Node:
        return Part(left, operator.type, _text(search), negated=False)

    def not_part(self, left: Node, _not: Token, operator: Token, search: Token) -> Node:
        return Part(left, operator.type, _text(search), negated=True)

    def negate(self, operand: Node) -> Node:
        return Negate(operand)

    def negation(self, _not: Token, operand: Node) -> Node:
        return Not(_condition(operand))

    def string(self, token: Token) -> Node:
        return Constant(_text(token))

    def decimal(self, token: Token) -> Node:
        try:
            value = integer(token.rstrip("lL"), 64)
        except NumberFormatError as error:
            raise NotAnExpressionError(f"{token} is no long") from error
        return Constant(value if value < 1 << 31 else Long(value))

    def floating(self, token: Token) -> Node:
        value = float(token)
        # ConstantExpression.createFloat takes Double.MIN_VALUE, which is above zero, for the least.
        if math.isinf(value) or value == 0:
            raise NotAnExpressionError(f"{token} is out of the range of doubles above zero")
        return Constant(value)

    def true(self, _: Token) -> Node:
        return BooleanConstant(True)

    def false(self, _: Token) -> Node:
        return BooleanConstant(False)

    def null(self, _: Token) -> Node:
        return NULL

    def variable(self, token: Token) -> Node:
        return Property(str(token))


def _condition(node: Node) -> Node:
    """``SelectorParser.asBooleanExpression``."""
    if node.boolean:
        return node
    if isinstance(node, Property):
        return Cast(node)
    raise NotAnExpressionError("a number or a string where a condition is asked for")


def _equal(left: Node, right: Node) -> Node:
    if NULL in (left, right):
        raise NotAnExpressionError("NULL can't be compared")
    if isinstance(left, BooleanConstant) and isinstance(right, Constant) and not right.boolean:
        raise NotAnExpressionError("TRUE and FALSE can't be compared with this constant")
    return Equal(left, right)


def _order(operator: str, left: Node, right: Node) -> Node:
    for node in (left, right):
        # A property, a negation, or a number.
        if node.boolean or (isinstance(node, Constant) and isinstance(node.constant, str)):
            raise NotAnExpressionError(f"only numbers can be compared by {operator}")
    return Order(operator, left, right)


def _between_nodes(value: Node, low: Node, high: Node) -> Node:
    node = And((_order(">=", value, low), _order("<=", value, high)))
    if isinstance(low, Constant) and isinstance(high, Constant):
        least, most = low.constant, high.constant
        # What _order lets through are numbers.
        if (
            isinstance(least, int | float)
            and isinstance(most, int | float)
            and compare_numbers(most, least) < 0
        ):
            raise NotAnExpressionError(f"BETWEEN {least} AND {most} holds nothing")
    return node


def _in_node(left: Node, elements: tuple[Token, ...], *, negated: bool) -> Node:
    if not isinstance(left, Property):
        raise NotAnExpressionError("IN asks for a property")
    return In(left.name, frozenset(map(_text, elements)), negated)


_QUOTES = re.compile("''")


def _text(literal: Token) -> str:
    return _QUOTES.sub("'", literal[1:-1])
