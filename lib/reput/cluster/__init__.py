"""What a cluster needs (``python -m reput.cluster.plan``)."""
