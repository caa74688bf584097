"""A store's messages as a Delta table: each once, whatever ends a run; found by day, topic and queueOffset.

:mod:`table` knows Delta, :mod:`rows` writes the table's files and :mod:`compaction` says which of them are to
be merged, all without Spark; :mod:`appending` compares table and log, has tasks write and
commits what they wrote, :mod:`update` does all of it, and :mod:`beside` again and again beside a tail.
"""
