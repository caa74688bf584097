"""Index files, whole ones by tasks and the last one put key by key."""
