"""What a store or its broker.conf asks for that reput doesn't derive: said before anything is read."""

from __future__ import annotations

from pathlib import Path

from reput.config.broker_conf import JAVA_WHITE, BrokerConf
from reput.errors import UnsupportedError
from reput.format import names

#: RocksDB's own, as a broker's of any release leaves them.
_FILES = "CURRENT, IDENTITY, LOCK, LOG*, MANIFEST-*, OPTIONS-*, *.log and *.sst"


def _loaded_types(conf: BrokerConf) -> list[str]:
    """``combineCQLoadingCQTypes``. Source: ``StoreType.fromString``: names between ``;``, large or small."""
    types = conf.text("combineCQLoadingCQTypes")
    if types is None:
        return ["default", "defaultrocksdb"]
    return [name.strip(JAVA_WHITE).lower() for name in types.split(";")]


def in_rocksdb_alone(conf: BrokerConf) -> bool:
    """Whether queues are in RocksDB and in no files."""
    if (conf.text("storeType") or "").lower() == "defaultrocksdb":
        return True
    return in_rocksdb(conf) and "default" not in _loaded_types(conf)


def in_rocksdb(conf: BrokerConf) -> bool:
    """Whether queues are in RocksDB, too, under ``storeType=default``."""
    return conf.switch("rocksdbCQDoubleWriteEnable", False) and "defaultrocksdb" in _loaded_types(conf)


def refuse_unsupported(conf: BrokerConf, *, dledger: bool, rocksdb: bool = False) -> None:
    """Say no to what changes the files and isn't derived, before anything is read.

    Args:
        dledger, rocksdb: the caller can do with a log that DLedger writes, with queues in RocksDB.
    """
    if conf.switch("enableDLegerCommitLog", False) and not dledger:
        raise UnsupportedError(
            _where(conf, "enableDLegerCommitLog")
            + "enableDLegerCommitLog asks for a commit log that DLedger writes; this command doesn't read it",
            path=conf.path,
            found="enableDLegerCommitLog=true",
            next_step="rebuild, check and query can do it (docs/formats/dledger.md); what a start would cut "
            "and what is committed is the group's to decide.",
        )
    # In every release: CommitLog.confirmOffset begins at -1, is moved from outside, and bounds what
    # ReputMessageService.doReput and recoverAbnormally dispatch (4.9.7, 5.3.3).
    if conf.switch("duplicationEnable", False):
        raise _unsupported(
            conf,
            "duplicationEnable",
            "queues that go no further than the broker's confirmOffset",
            "The log doesn't say where that is. For all that the log holds, confirmed or not, set "
            "duplicationEnable=false in a copy of the file; what a start would do can't be told then either.",
        )
    if in_rocksdb(conf) and conf.switch("rocksdbCQSelectiveDoubleWriteEnable", False):
        raise _unsupported(
            conf,
            "rocksdbCQSelectiveDoubleWriteEnable",
            "some topics' queues in RocksDB as well",
            "Which topics these are isn't in the log. Set rocksdbCQDoubleWriteEnable=false in a copy of the "
            "file to get all queues in files.",
        )
    if rocksdb:
        return
    if (conf.text("storeType") or "").lower() == "defaultrocksdb":
        raise _not_known(conf, "storeType", "consume queues in RocksDB")
    if in_rocksdb_alone(conf):
        raise _not_known(
            conf,
            "combineCQLoadingCQTypes",
            "consume queues in RocksDB alone",
        )
    if (
        in_rocksdb(conf)
        and conf.switch("combineCQUseRocksdbForLmq", False)
        and conf.switch("enableMultiDispatch", False)
    ):
        raise _not_known(
            conf,
            "combineCQUseRocksdbForLmq",
            "light message queues in RocksDB",
        )


def refuse_rocksdb(root: Path, conf: BrokerConf, queues: str | None) -> None:
    """Say no to a store whose queues are in RocksDB, though broker.conf doesn't say so.

    Source: ``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3; in 5.5.0 it asks for this file at both places).

    Args:
        queues: the directory where broker.conf has them; None where it has none in RocksDB.
    """
    if queues is None and conf.switch("rocksdbCQDoubleWriteEnable", False):
        return  # combineCQLoadingCQTypes has files alone, and a broker doesn't look
    for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB):
        if name == queues:
            continue
        mark = root / name / "CURRENT"
        if _is_file(mark):
            raise UnsupportedError(
                f"this store's consume queues are in RocksDB in {name}/, though broker.conf doesn't say so",
                path=mark.parent,
                expected=(
                    "consume queue files alone, as with storeType=default"
                    if queues is None
                    else f"queues in {queues}/ alone: a broker doesn't start with both"
                ),
                found=_of_rocksdb(mark.parent),
                next_step="If the broker keeps its queues in RocksDB, give its own broker.conf "
                "(storeType=defaultRocksDB, or rocksdbCQDoubleWriteEnable=true where it keeps files, too). "
                f"If it doesn't, an earlier storeType has left this: move {_FILES} of {mark.parent} away",
            )


def _of_rocksdb(directory: Path) -> str:
    """What of RocksDB lies there, in words."""
    try:
        found = [path.name for path in directory.iterdir()]
    except OSError:
        return "CURRENT"
    tables = sum(name.endswith(".sst") for name in found)
    manifest = next((name for name in sorted(found) if name.startswith("MANIFEST-")), "no MANIFEST")
    return f"CURRENT, {manifest} and {tables:,} *.sst"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _not_known(conf: BrokerConf, key: str, what: str) -> UnsupportedError:
    entry = conf.entry(key)
    return UnsupportedError(
        f"{_where(conf, key)}{key} asks for {what}, which this command doesn't know",
        path=conf.path,
        found=None if entry is None else f"{entry.key}={entry.value}",
        next_step="docs/formats/rocksdb.md says which commands do",
    )


def _unsupported(conf: BrokerConf, key: str, what: str, next_step: str) -> UnsupportedError:
    entry = conf.entry(key)
    return UnsupportedError(
        f"{_where(conf, key)}{key} asks for {what}, which reput doesn't build",
        path=conf.path,
        found=None if entry is None else f"{entry.key}={entry.value}",
        next_step=next_step,
    )


def _where(conf: BrokerConf, key: str) -> str:
    entry = conf.entry(key)
    return "" if entry is None else f"line {entry.line}: "
