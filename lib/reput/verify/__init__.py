"""Whether a store's derived files are what its commit log says: both ways, without changing anything.

:mod:`reput.verify.units`, :mod:`reput.verify.outside`, :mod:`reput.verify.index_file` and
:mod:`reput.verify.entries` compare bytes and know no Spark; :mod:`reput.verify.tasks` are what Spark runs;
:mod:`reput.verify.run` puts them together. docs/check.md says what is compared.
"""
