"""Messages of a log taken out of it: as lines that say all of each, or as records of a small new store."""
