"""What a run writes: queues, index files, ledger and journal, committed batch by batch."""
