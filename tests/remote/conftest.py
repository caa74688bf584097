"""Servers that the tests of this package share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rebuilds import Command
from tests.remote import gateway as servers
from tests.remote.gateway import Gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with servers.gateway(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def credentials(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the environment name the server; a call changes what it names. Requests are repeated at once."""

    def use(**changes: str) -> None:
        for name, value in gateway.environment(**changes).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("reput.remote.store._clients", {})

    monkeypatch.setattr("reput.remote.client._WAITS", (0.01, 0.01))
    use()
    return use


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    def no_spark() -> None:
        raise AssertionError("Spark was to be started")

    return Command(monkeypatch, no_spark)  # type: ignore[arg-type]
