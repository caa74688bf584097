"""Whatever is damaged, a mend comes to rest: a share of what ``make fixed-point`` tries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixed_point.cases import Case, Original
from tests.fixed_point.damages import ALL
from tests.fixed_point.proof import proven
from tests.fixed_point.small import STORES, VERSIONS, small
from tests.fuzz.calm import calm


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Original]]:
    with calm():
        yield small(tmp_path_factory)


_damages = st.lists(st.tuples(st.sampled_from(ALL), st.integers(0, 1 << 20)), min_size=2, max_size=3).map(
    tuple
)
_cases = st.builds(Case, st.sampled_from(VERSIONS), st.sampled_from(STORES), _damages)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=_cases)
def test_a_mend_comes_to_rest(
    case: Case, originals: dict[tuple[str, str], Original], tmp_path_factory: pytest.TempPathFactory
) -> None:
    outcome = proven(case, originals[case.version, case.state], tmp_path_factory.mktemp("case"))
    assert not outcome.why, f"{case}: " + "; ".join(outcome.why)
