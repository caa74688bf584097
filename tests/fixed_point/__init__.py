"""A fixed point: whatever is damaged, ``mend --apply`` ends where ``check`` has nothing left to send to."""
