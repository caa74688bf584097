"""A store's messages as a Delta table: each once, whatever ends a run; found by day, topic and queueOffset.

:mod:`table` knows Delta without Spark, :mod:`standing` compares table and log, :mod:`compaction` says which
days are to be clustered, :mod:`run` commits what the log has gained, :mod:`beside` does so beside a tail.
"""
