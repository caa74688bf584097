"""A fixed point, proven: whatever is damaged, a mend ends where ``check`` has nothing left to send to."""
