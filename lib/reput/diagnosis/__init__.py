"""One diagnosis of a store: what is wrong, what a start would do about it, and what mends it."""
