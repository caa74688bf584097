"""Whatever is damaged, a mend comes to rest: a share of ``make fixed-point``, over golden stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from tests.compat.conf import conf_text
from tests.fixed_point.cases import Case, Original
from tests.fixed_point.damages import ALL
from tests.fixed_point.proof import proven
from tests.fuzz.calm import calm
from tests.golden.store import unpack

_STORES = ("tiny", "no-keys")
_VERSIONS = ("4.9.7", "5.3.3", "5.5.0")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Original]]:
    """Small stores that the real one wrote, by release and name."""
    found = {}
    for version in _VERSIONS:
        for name in _STORES:
            place = tmp_path_factory.mktemp(f"{version}-{name}")
            golden = unpack(f"{version}-{name}", place / "store")
            conf = place / "broker.conf"
            conf.write_text(conf_text(golden.config), encoding="utf-8")
            sizes = StoreSettings.load(golden.root, conf, version)
            found[version, name] = Original(
                golden.root,
                conf,
                version,
                int(str(golden.config["mappedFileSizeCommitLog"])),
                sizes.consume_queue_file_size,
            )
    with calm():
        yield found


_damages = st.lists(st.tuples(st.sampled_from(ALL), st.integers(0, 1 << 20)), min_size=2, max_size=3).map(
    tuple
)
_cases = st.builds(Case, st.sampled_from(_VERSIONS), st.sampled_from(_STORES), _damages)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=_cases)
def test_a_mend_comes_to_rest(
    case: Case, originals: dict[tuple[str, str], Original], tmp_path_factory: pytest.TempPathFactory
) -> None:
    outcome = proven(case, originals[case.version, case.state], tmp_path_factory.mktemp("case"))
    assert not outcome.why, f"{case}: " + "; ".join(outcome.why)
