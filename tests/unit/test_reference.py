"""Pages of docs/data against what the code knows; ``python -m tests.reference`` writes them."""

from __future__ import annotations

import pytest

from tests import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    said = (reference.DATA / name).read_text(encoding="utf-8")
    assert said == reference.PAGES[name](), "run `python -m tests.reference`"
