"""What is in a commit log, counted: by topic, queue, tag, hour or host. No Spark, no printing."""

from reput.statistics.count import Span, count
from reput.statistics.tally import By, Gap, Group, Statistics

__all__ = ["By", "Gap", "Group", "Span", "Statistics", "count"]
