"""Watching a tail and stopping it, from outside and without being in its way."""
