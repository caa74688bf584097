"""What Spark Structured Streaming needs of reput: the queries, how they end, and their checkpoint."""
