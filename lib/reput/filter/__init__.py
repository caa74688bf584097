"""Filter bit maps: what a broker computes of each message for its consumers with SQL92 expressions.

``docs/formats/filter-bit-maps.md`` has the grammar, the semantics and a worked example. Nothing here knows
Spark.
"""
