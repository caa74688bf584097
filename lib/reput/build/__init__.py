"""From arrays to the bytes of each output; without Spark, and of files only consumerFilter.json."""
