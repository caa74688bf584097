"""Files, locks and places of a store and of an output: no Spark, no byte layout."""
