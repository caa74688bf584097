"""foreachBatch: from rows that name parts of the log to flushed files, journal, ledger and checkpoint."""
