"""What a commit log is: its segments, its records one by one, and where it ends, also under a running broker."""
