"""A starting broker, step by step: what it loads, cuts, drops and dispatches, told without doing it."""
