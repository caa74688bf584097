"""What a restart takes away from a store, what can be done instead, and the mending of it."""
