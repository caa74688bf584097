"""A store's messages as a Delta table: each once, whatever ends a run; found by day, topic and queueOffset.

:mod:`table` knows Delta, :mod:`rows` writes the table's files and :mod:`compaction` says which of them are to
be merged, all without Spark; :mod:`standing` compares table and log, :mod:`appending` has tasks write and
commits what they wrote, :mod:`run` does all of it, and :mod:`beside` again and again beside a tail.
"""
