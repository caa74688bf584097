"""A starting broker, step by step: what it loads, cuts, drops and dispatches, told without doing it.

Nothing in this package writes. The rules that differ between releases stand in :mod:`reput.config.dialect`.
"""
