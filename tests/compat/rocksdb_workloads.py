"""What the real store is made to write into RocksDB: workloads of files, with other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.compat.message import Message
from tests.compat.workloads import SEED, Operation, QueryMin, Workload, workload

ROCKSDB: dict[str, object] = {"storeType": "defaultRocksDB"}
_DOUBLE: dict[str, object] = {"rocksdbCQDoubleWriteEnable": True}
_SEPARATE: dict[str, object] = {"useSeparateStorePathForRocksdbCQ": True}
#: Queues that are asked for their first offset, as brokers ask for a topic's at times: that puts a min key.
_ORDERS = [QueryMin("Orders", queue_id) for queue_id in range(4)]

#: By name: the workload, more settings, and what is done at its end.
_Variant = tuple[str, dict[str, object], Sequence[Operation]]
_EVERYWHERE: dict[str, _Variant] = {
    "mixed": ("mixed", ROCKSDB, _ORDERS),
    "restart": ("restart", ROCKSDB, _ORDERS),
    "lost-head": ("lost-head", ROCKSDB, _ORDERS),
    "lmq": ("lmq", ROCKSDB, [QueryMin("%LMQ%device-0", 0)]),
    "light": ("lmq", ROCKSDB, [QueryMin("%LMQ%device-0", 0)]),
    "light-alone": ("lmq", {**ROCKSDB, "enableMultiDispatch": False}, ()),
    "recreated-topic": ("recreated-topic", ROCKSDB, ()),
    "batch-queue": ("batch-queue", ROCKSDB, ()),
    "long-topics": ("long-topics", ROCKSDB, ()),
    "double-write": ("mixed", _DOUBLE, ()),
    "tiny": ("tiny", ROCKSDB, ()),
}
_SINCE_5_5: dict[str, _Variant] = {
    "separate-path": ("tiny", {**ROCKSDB, **_SEPARATE}, ()),
    "light-only": ("lmq", {**_DOUBLE, **_SEPARATE, "combineCQUseRocksdbForLmq": True}, ()),
    "index": ("mixed", {**ROCKSDB, "indexRocksDBEnable": True}, ()),
}

VARIANTS: dict[str, dict[str, _Variant]] = {
    "5.3.3": _EVERYWHERE,
    "5.5.0": {**_EVERYWHERE, **_SINCE_5_5},
}


def rocksdb_workload(name: str, version: str, seed: int = SEED) -> Workload:
    """The workload of this name.

    Raises:
        KeyError: there is none of this name for this version.
    """
    base, settings, finally_ = VARIANTS[version][name]
    found = workload(base, version, seed)
    operations = [*found.operations, *finally_]
    if name in ("light", "light-alone"):
        operations = [_naming_each_once(operation) for operation in operations]
    return replace(found, name=f"rocksdb-{name}", config={**found.config, **settings}, operations=operations)


def _naming_each_once(operation: Operation) -> Operation:
    """A message that names a light queue twice takes two places there and gets one unit: a hole stays."""
    if not isinstance(operation, Message) or "INNER_MULTI_DISPATCH" not in operation.properties:
        return operation
    queues = operation.properties["INNER_MULTI_DISPATCH"].split(",")
    once = ",".join(dict.fromkeys(queues))
    return replace(operation, properties={**operation.properties, "INNER_MULTI_DISPATCH": once})
