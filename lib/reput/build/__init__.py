"""From arrays to the bytes of each output. Pure: no files, no Spark."""
