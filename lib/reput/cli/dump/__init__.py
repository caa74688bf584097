"""``reput dump``: what is in the files, a line a record, or a digest a range."""

from reput.cli.dump import commitlog, files  # noqa: F401 - they register their commands
