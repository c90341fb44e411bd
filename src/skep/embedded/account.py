"""The user that PostgreSQL runs as: it refuses to be root."""

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
    """Return the user to become before running PostgreSQL, None to stay who we are."""
    if os.geteuid() != 0:
        return None
    if pgdata.exists() and (owner := pgdata.stat()).st_uid != 0:  # the data was made by it; nobody else may read it
        return Account(_name(owner.st_uid), owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def may(path: Path, account: Account, wanted: int) -> bool:
    """Tell whether the mode of the file alone gives the account the wanted bits (4 read, 2 write, 1 execute)."""
    status = path.stat()
    if status.st_uid == account.uid:
        bits = status.st_mode >> 6
    elif status.st_gid == account.gid:
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    return bits & wanted == wanted


def blocker(path: Path, account: Account) -> Path | None:
    """Return the outermost part of a resolved path that the account may not pass, None if it can reach the end."""
    for part in (*reversed(path.parents), path):
        wanted = 1 if stat.S_ISDIR(part.stat().st_mode) else 5
        if not may(part, account, wanted):
            return part
    return None
