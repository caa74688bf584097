"""From arrays to the bytes of each output; without files or Spark."""
