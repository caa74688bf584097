"""Queries of a store, stopped or live, answered from its files: by offset, by time, by key, by id."""

from reput.derived.times import Boundary
from reput.query.message import Message, MessageId
from reput.query.store import ById, Found, KeyHit, Pulled, QueryStore, Status, TagFilter, Verdict

__all__ = [
    "Boundary",
    "ById",
    "Found",
    "KeyHit",
    "Message",
    "MessageId",
    "Pulled",
    "QueryStore",
    "Status",
    "TagFilter",
    "Verdict",
]
