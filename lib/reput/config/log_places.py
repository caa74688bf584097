"""Where a store's commit log is: by the paths of broker.conf, the store's present place, and DLedger's own.

STORE wins over ``storePathRootDir``: a copied store is read with the original's file (docs/settings.md).
"""

from __future__ import annotations

import ntpath
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath

from reput.config.broker_conf import JAVA_WHITE, BrokerConf, Property
from reput.errors import SettingsError
from reput.remote import remote_store
from reput.store.listing import names_seen

#: DLedgerCommitLog takes what follows the first character for a number.
_MEMBER = re.compile(r"[A-Za-z][0-9]{1,9}", re.ASCII)
_PATH_SEPARATOR = ","  # MessageStoreConfig.MULTI_PATH_SPLITTER
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class DLedgerSettings:
    """What a store with ``enableDLegerCommitLog`` has beside its segments."""

    home: Path  # ``dledger-SELFID`` in the store, absolute; its ``checkpoint`` tells what is committed
    #: of the segments that DLedger writes, in the order of broker.conf; the other directories of the
    #: commit log hold what was written before it
    dirs: tuple[Path, ...]
    alone: bool  # the group has one member, so that whatever it has written is committed


def absolute(path: Path) -> Path:
    """Absolute, without ``..``; symbolic links stay, so that errors show what the user wrote."""
    return Path(os.path.normpath(Path.cwd() / path))


def commit_log_dirs(root: Path, conf: BrokerConf, group: DLedgerSettings | None) -> tuple[Path, ...]:
    """Where the segments are (``CommitLog``, ``MultiPathMappedFileQueue``), with STORE in its place.

    With DLedger its directories come first, then those of the commit log from before it, if there are any.
    """
    several = conf.rules.multi_path_commit_log
    dirs = _dirs(root, conf, "storePathCommitLog", root / "commitlog", several, alone=group is None)
    if group is None:
        return dirs
    return tuple(dict.fromkeys((*group.dirs, *(path for path in dirs if _has_names(path)))))


def _dirs(
    root: Path, conf: BrokerConf, key: str, own: Path, several: bool, *, alone: bool
) -> tuple[Path, ...]:
    """The directories that a setting names, each once; the store's ``own`` without it.

    ``several``: it may name more than one. ``alone``: they hold all of the log, with the read-only ones.
    """
    entry, text = conf.entry(key), conf.text(key)
    if entry is None or text is None:
        return (own,)
    conf_root, is_elsewhere = _conf_root(conf), remote_store(root) is not None

    def place(part: str, entry: Property) -> Path:
        if is_elsewhere and (conf_root is None or not _is_below(_path(part), conf_root)):
            return own  # a directory of this host isn't the log of a store elsewhere
        return _place(part, entry, root, conf)

    several = several and _PATH_SEPARATOR in text
    dirs = [place(part, entry) for part in _parts(text, several)]
    if alone:
        read_only, text = conf.entry("readOnlyCommitLogStorePaths"), conf.text("readOnlyCommitLogStorePaths")
        # Only the queue of several paths looks at the read-only ones.
        if several and read_only is not None and text is not None and text.strip(JAVA_WHITE):
            dirs += [place(part, read_only) for part in _parts(text, True)]
        dirs = list(dict.fromkeys(dirs))
        _refuse_ambiguous(dirs, entry, root, conf, own)
    return tuple(dirs)


def dledger_settings(root: Path, conf: BrokerConf) -> DLedgerSettings | None:
    """DLedger's own settings: ``DLedgerConfig.getDefaultPath``, ``getDataStorePath``."""
    if not conf.switch("enableDLegerCommitLog"):
        return None
    entry = conf.entry("dLegerSelfId")
    member = conf.text("dLegerSelfId")
    if entry is None or member is None or _MEMBER.fullmatch(member) is None:
        raise SettingsError(
            "dLegerSelfId doesn't name a member of the group, so that it isn't known where the commit log is",
            path=conf.path,
            expected="n and a number, e.g. n0",
            found="nothing" if entry is None else f"{entry.key}={entry.value!r}",
            next_step="Write down the dLegerSelfId of the broker whose store this is.",
        )
    home = root / f"dledger-{member}"
    dirs = _dirs(root, conf, "storePathDLedgerCommitLog", home / "data", several=True, alone=True)
    peers = [peer for peer in (conf.text("dLegerPeers") or "").split(";") if peer.strip(JAVA_WHITE)]
    return DLedgerSettings(home, dirs, alone=len(peers) == 1)


def _path(text: str) -> PurePath:
    """A path as broker.conf has it, without ``..``; Windows' own with a drive or a backslash."""
    if not text.startswith("/") and ("\\" in text or _DRIVE.match(text)):
        return PureWindowsPath(ntpath.normpath(text))
    return Path(os.path.normpath(text))


def _is_below(path: PurePath, other: PurePath) -> bool:
    return type(path) is type(other) and path.is_relative_to(other)


def _parts(text: str, several: bool) -> list[str]:
    if not several:
        return [text]
    parts = text.strip(JAVA_WHITE).split(_PATH_SEPARATOR)
    while len(parts) > 1 and not parts[-1]:  # as String.split does
        parts.pop()
    return parts


def _place(text: str, entry: Property, root: Path, conf: BrokerConf) -> Path:
    """The directory that a path of broker.conf stands for, now that the store is at ``root``."""
    if not text or text != text.strip(JAVA_WHITE):
        raise conf.error(
            entry,
            f"{entry.key} has a directory with white space around its name, or without one",
            "directories, separated by a comma and nothing else",
            "The broker takes the white space as part of the name.",
        )
    if not _can_be_a_name(text):
        raise conf.error(
            entry,
            f"{entry.key} names a directory that can't be",
            "no NUL, and no half of a surrogate pair",
            "A broker can't open it, either.",
        )
    path = _path(text)
    conf_root = _conf_root(conf)
    if conf_root is not None and _is_below(path, conf_root):
        return root.joinpath(*path.relative_to(conf_root).parts)
    if not isinstance(path, Path):
        raise conf.error(
            entry,
            f"{entry.key} names a directory on Windows that isn't below storePathRootDir",
            f"a directory below {conf_root or 'storePathRootDir'}, which STORE stands for, or one here",
            "In a copy of the file, write each backslash twice: the broker drops a single one, too."
            if path.drive and not path.root
            else f"In a copy of the file, let {entry.key} name the directory that holds these segments here.",
        )
    if not path.is_absolute():
        raise conf.error(
            entry,
            f"{entry.key} is relative to where the broker was started, which isn't known here",
            "absolute directories, or ones under storePathRootDir",
            "Give reput a copy of the file with the whole path.",
        )
    return path


def _conf_root(conf: BrokerConf) -> PurePath | None:
    text = conf.text("storePathRootDir")
    return _path(text) if text and _can_be_a_name(text) else None


def _can_be_a_name(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _refuse_ambiguous(dirs: list[Path], entry: Property, root: Path, conf: BrokerConf, own: Path) -> None:
    """Refuse to read the original's commit log beside a copied store, and a commit log that isn't there.

    The directories of broker.conf that lie outside the original's root keep their place: on the original's
    own machine they are the live broker's, while a copy brings its ``own``.
    """
    if any(path.is_relative_to(root) or _same(path, own) for path in dirs):
        return
    copied = _has_names(own)
    conf_root = _conf_root(conf)
    if isinstance(conf_root, Path) and _same(conf_root, root):
        return
    if not any(_is_dir(path) for path in dirs):
        step = f"Remove the line from a copy of the file to read {own}." if copied else None
        raise conf.error(entry, f"the commit log isn't where {entry.key} says", "a directory here", step)
    if copied:
        raise conf.error(
            entry,
            f"two commit logs could be meant: the one that {entry.key} names, and {own}",
            f"storePathRootDir={root}, or no {entry.key}",
            "Give reput a copy of the file that says which: with storePathRootDir set to the store that you "
            f"named for the first, without {entry.key} for the second.",
        )


def _has_names(directory: Path) -> bool:
    elsewhere = remote_store(directory)
    return bool(names_seen(directory, 1) if elsewhere is None else elsewhere.files_in(directory))


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or a directory that may not be looked into
        return False


def _same(left: Path, right: Path) -> bool:
    try:
        return left.samefile(right)
    except OSError:
        return absolute(left) == absolute(right)
