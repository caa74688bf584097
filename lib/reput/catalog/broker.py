"""Whose messages: the broker's name and its cluster's, as a table of many stores has them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import quote

from reput.config.broker_conf import BrokerConf, read
from reput.config.settings import StoreSettings
from reput.errors import SettingsError

#: The columns of a table of many stores that say whose message it is.
CLUSTER, BROKER = "cluster", "broker"
_KEYS = {CLUSTER: "brokerClusterName", BROKER: "brokerName"}
#: What can stand in SQL, in a line for people and in a URL's query without harm.
_NAME = re.compile(r"""[^\x00-\x20'"\\\x7f-\xa0\ud800-\udfff]{1,127}""")
_NOT_IN_PATHS = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of a cluster."""

    cluster: str  # ``brokerClusterName``
    name: str  # ``brokerName``

    def __str__(self) -> str:
        return f"{self.name} of {self.cluster}"

    @property
    def application(self) -> str:
        """The Delta transaction whose version is the cursor of this broker's log."""
        return f"reput-catalog/{quote(self.cluster, safe='')}/{quote(self.name, safe='')}"

    @property
    def directory(self) -> str:
        """Where its files lie, relative to the table. Only the table's log says for sure whose a file is."""
        cluster, name = (_NOT_IN_PATHS.sub("_", one) for one in (self.cluster, self.name))
        return f"{CLUSTER}={cluster}/{BROKER}={name}"

    @property
    def digest(self) -> str:
        """A name for files about it."""
        return hashlib.sha256(self.application.encode()).hexdigest()[:16]

    def to_columns(self) -> dict[str, str]:
        """Its values of :data:`CLUSTER` and :data:`BROKER`."""
        return {CLUSTER: self.cluster, BROKER: self.name}


def broker_of(settings: StoreSettings, cluster: str | None, broker: str | None) -> Broker:
    """Whose a store is: what was said, or what its broker.conf says, and never a default."""
    path = settings.broker_conf
    conf = BrokerConf({} if path is None else read(path), path, settings.dialect)
    names = []
    for column, said in ((CLUSTER, cluster), (BROKER, broker)):
        key = _KEYS[column]
        found = conf.text(key) or None
        if said is not None and found is not None and said != found:
            raise SettingsError(
                f"{key} isn't what was said of the store",
                path=path,
                expected=said,
                found=found,
                next_step=f"Leave --{column} out, or give the broker.conf of this store's broker",
            )
        name = found if said is None else said
        if name is None:
            raise SettingsError(
                f"nothing says which {column} the store is of",
                path=settings.root if path is None else path,
                expected=f"{key} in broker.conf, --{column}, or {column} in stores.toml",
                found="no broker.conf" if path is None else f"no {key}",
                next_step="Give it: a default would put two brokers' messages under one name",
            )
        if _NAME.fullmatch(name) is None:
            raise SettingsError(
                f"the {column} has a name that the table can't have",
                path=path,
                expected="up to 127 characters, no blanks, quotes, backslashes or control characters",
                found=repr(name),
                next_step=f"Say it with --{column}, and leave broker.conf's out"
                if said is None
                else "Give another",
            )
        names.append(name)
    return Broker(*names)
