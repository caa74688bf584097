"""What the log says of queues and index: scanned, put together and placed. Nothing but scratch is written."""
