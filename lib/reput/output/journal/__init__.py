"""The commit point of every batch."""
