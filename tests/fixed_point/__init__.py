"""A fixed point, proven: whatever is damaged, ``mend --apply`` ends where ``check`` has nothing left to send to."""
