"""What governs a store: its broker.conf, the release's dialect, the topics, and what its files show."""
