"""What every batch did, as a Delta table."""
