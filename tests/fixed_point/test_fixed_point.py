"""Whatever is damaged, a mend comes to rest: a share of what ``make fixed-point`` tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
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


#: What once didn't come to rest, by kinds.
_FOUND = (
    "5.3.3/tiny/bad_magic_early:535226+no_blank:572343",
    "5.5.0/restart/missing_segment:0+longer:3",
    "5.3.3/restart/segments_gone:3+directory_in_index:0+queues_gone:0",
    "5.5.0/restart/truncated:12+empty_last_queue_file:0",
    "5.3.3/restart/topic_gone:0+empty:1",
    "4.9.7/restart/swapped:7+torn_in_the_body:0",
    "5.5.0/restart/foreign_queue:0+index_torn:0",
    "4.9.7/restart/batch_queue:1+bit_in_log:5",
    "5.5.0/restart/batch_queue:2+bit_in_log:4",
    "5.3.3/restart/missing_segment_without_queues:0+batch_topic:0",
    "4.9.7/tiny/batch_topic:0+bad_magic:0",
    "4.9.7/restart/no_log:0+stray_of_right_length:0",
    "5.3.3/restart/zeroed:8+fifo:3",
    "4.9.7/restart/directory:9+removed:3",
    "5.5.0/tiny/torn_in_the_body:0+directory:4",
    "4.9.7/tiny/misplaced_record:0",
    "5.3.3/restart/abort_changed:0+other_checkpoint:4+segments_gone:2",
    "5.5.0/restart/link:3+short_segment:0+queues_gone:0",
    "4.9.7/tiny/no_log:435880+empty_last_segment:787646",
)


def _with_examples(test: Callable[..., None]) -> Callable[..., None]:
    for one in _FOUND:
        test = example(case=Case.of(one))(test)
    return test


@_with_examples
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=_cases)
def test_a_mend_comes_to_rest(
    case: Case, originals: dict[tuple[str, str], Original], tmp_path_factory: pytest.TempPathFactory
) -> None:
    outcome = proven(case, originals[case.version, case.state], tmp_path_factory.mktemp("case"))
    assert not outcome.why, f"{case}: " + "; ".join(outcome.why)
