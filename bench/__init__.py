"""The benchmark: the real RocketMQ store's own rebuild of a commit log beside reput's.

``python -m bench`` from the repository's root; docs/data/benchmark.md says what is measured and how.
"""
