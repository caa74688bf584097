"""Whether a store's derived files are what its commit log says: both ways, without changing anything.

:mod:`reput.verify.units`, :mod:`reput.verify.outside`, :mod:`reput.verify.index_file` and
:mod:`reput.verify.entries` compare bytes and know no Spark; :mod:`reput.verify.tasks` are what Spark runs;
:mod:`reput.verify.run` puts them together. docs/check.md says what is compared.
"""

from __future__ import annotations

from reput.verify.against import verify_against
from reput.verify.plan import VerifyOptions
from reput.verify.report import Difference, Note, Report
from reput.verify.run import verify

__all__ = ["Difference", "Note", "Report", "VerifyOptions", "verify", "verify_against"]
