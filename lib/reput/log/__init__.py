"""What a commit log is: its segments, its records, and where it ends, also while a broker writes it."""
