"""A store on one page: facts are gathered, then :mod:`reput.report.page` renders them."""

from reput.report.facts import Facts
from reput.report.gather import GatherOptions, gather

__all__ = ["Facts", "GatherOptions", "gather"]
