"""A store's messages as a Delta table: each once, whatever ends a run; found by day, topic and queueOffset.

:mod:`table` knows Delta without Spark, :mod:`standing` compares table and log, :mod:`compaction` says which
days are to be clustered, :mod:`appending` commits what the log has gained, :mod:`run` does all of
it, and :mod:`beside` again and again beside a tail.
"""
