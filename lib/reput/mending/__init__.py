"""Mending a store, so that a broker starts on it and loses nothing that is still there."""
