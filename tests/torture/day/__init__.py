"""A day of 1,000 messages a second, fed at 10,000 a second, through one tail: ``make day``."""
