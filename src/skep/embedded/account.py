"""The user that runs PostgreSQL, which does not run as root."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from skep.errors import EmbeddedError


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the operating system."""

    name: str
    uid: int
    gid: int


def server_account(pgdata: Path) -> Account | None:
    """Return the user that runs PostgreSQL, or None for the current user."""
    if os.geteuid() != 0:
        return None
    if pgdata.exists() and (owner := pgdata.stat()).st_uid != 0:  # the owner of the data, which no other user may read
        return Account(_name(owner.st_uid), owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError("PostgreSQL does not run as root, and neither the user postgres nor the user nobody exists")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def may(path: Path, account: Account, wanted: int) -> bool:
    """Return whether the mode of a file gives the account these permission bits (4 read, 2 write, 1 execute)."""
    status = path.stat()
    if status.st_uid == account.uid:
        bits = status.st_mode >> 6
    elif status.st_gid == account.gid:
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    return bits & wanted == wanted


def blocker(path: Path, account: Account) -> Path | None:
    """Return the outermost part of a resolved path to which the account has no access, or None if it has."""
    for part in (*reversed(path.parents), path):
        wanted = 1 if stat.S_ISDIR(part.stat().st_mode) else 5
        if not may(part, account, wanted):
            return part
    return None
