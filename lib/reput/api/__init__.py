"""A store in Python: what ``import reput`` offers, and what the commands call."""
