"""What a store or its broker.conf asks for that reput doesn't derive: said before anything is read."""

from __future__ import annotations

from pathlib import Path

from reput.config.broker_conf import JAVA_WHITE, BrokerConf
from reput.errors import UnsupportedError


def refuse_unsupported(conf: BrokerConf, *, dledger: bool) -> None:
    """Say no to what changes the files and isn't derived, before anything is read."""
    if conf.switch("enableDLegerCommitLog", False) and not dledger:
        raise UnsupportedError(
            _where(conf, "enableDLegerCommitLog")
            + "enableDLegerCommitLog asks for a commit log that DLedger writes; this command doesn't read it",
            path=conf.path,
            found="enableDLegerCommitLog=true",
            next_step="rebuild, verify and query can do it (docs/formats/dledger.md); what a start would cut "
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
    if (conf.text("storeType") or "").lower() == "defaultrocksdb":
        raise _unsupported(
            conf,
            "storeType",
            "consume queues in RocksDB",
            "The broker rebuilds those by itself. For consume queue files, run the broker with "
            "storeType=default, and reput with the same file.",
        )
    if conf.switch("rocksdbCQDoubleWriteEnable", False):
        types = conf.text("combineCQLoadingCQTypes")
        # StoreType.fromString: names between ';', large or small.
        if types is not None and "default" not in [
            name.strip(JAVA_WHITE).lower() for name in types.split(";")
        ]:
            raise _unsupported(
                conf,
                "combineCQLoadingCQTypes",
                "consume queues in RocksDB alone",
                "Add default to the list, so that the broker keeps consume queue files, too.",
            )
        if conf.switch("combineCQUseRocksdbForLmq", False) and conf.switch("enableMultiDispatch", False):
            raise _unsupported(
                conf,
                "combineCQUseRocksdbForLmq",
                "light message queues in RocksDB",
                "Set enableMultiDispatch=false in a copy of the file to get the other queues: "
                "the broker brings back those in RocksDB itself.",
            )


def refuse_rocksdb(root: Path, conf: BrokerConf) -> None:
    """Say no to a store whose queues are in RocksDB, though broker.conf doesn't say so.

    Source: ``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3; in 5.5.0 it asks for this file at both places).
    """
    if conf.switch("rocksdbCQDoubleWriteEnable", False):
        return  # consume queue files are kept as well
    for name in ("consumequeue", "consumequeue_rocksdb"):
        mark = root / name / "CURRENT"
        if _is_file(mark):
            raise UnsupportedError(
                "this store's consume queues are in RocksDB, which reput doesn't build, though broker.conf "
                "doesn't say so",
                path=mark.parent,
                expected="consume queue files alone, as with storeType=default",
                found=f"{mark.name}, which is RocksDB's",
                next_step="Give reput the broker's own broker.conf. With rocksdbCQDoubleWriteEnable=true the "
                "broker keeps consume queue files, too; what an earlier storeType left can be moved away.",
            )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


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
