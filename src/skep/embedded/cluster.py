"""Create the data directory of PostgreSQL, with its role, password and database, or nothing at all."""

import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from skep.embedded.account import Account
from skep.embedded.binaries import Binaries
from skep.embedded.process import run
from skep.embedded.state import StateDir
from skep.errors import EmbeddedError

ROLE = "postgres"  # not "skep": unqualified names of users would then resolve to the schema of that name
DATABASE = "skep"
_DRAFT = "pgdata.draft-"

logger = logging.getLogger(__name__)


def ensure_cluster(state: StateDir, binaries: Binaries, account: Account | None) -> None:
    """Create the data if there is none. An interrupted attempt leaves only drafts, which the next one removes."""
    for leftover in state.root.glob(f"{_DRAFT}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if state.pgdata.exists():
        return
    password = _ensure_password(state)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=state.root))
    draft.chmod(0o711)
    data = _own(draft / "data", account)
    _initdb(binaries, data, _password_file(draft, password, account), account)
    _create_database(binaries, data, account)
    data.rename(state.pgdata)
    _sync(state.root)  # otherwise a power failure could undo the rename, and the next start would remove the draft
    shutil.rmtree(draft)
    logger.info("created the data with PostgreSQL %s in %s", binaries.major, state.pgdata)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _own(directory: Path, account: Account | None) -> Path:
    directory.mkdir(mode=0o700)
    if account is not None:
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)
    return directory


def _ensure_password(state: StateDir) -> str:
    if not state.password.exists():
        draft = state.password.with_suffix(".new")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(24))
        _sync(draft)
        draft.replace(state.password)
    return state.password.read_text()


def _password_file(draft: Path, password: str, account: Account | None) -> Path:
    """Write the password to a file that initdb can read as another user. It could not read /dev/stdin."""
    file = draft / "password"
    file.touch(mode=0o600)
    file.write_text(password)
    if account is not None:
        os.chown(file, account.uid, account.gid, follow_symlinks=False)
    return file


def _initdb(binaries: Binaries, data: Path, password_file: Path, account: Account | None) -> None:
    options = ("--locale=C", "--encoding=UTF8", "--data-checksums", "--auth=scram-sha-256", "--no-instructions")
    where = (f"--pgdata={data}", f"--username={ROLE}", f"--pwfile={password_file}")
    code, output = run([binaries.bin_dir / "initdb", *options, *where], account)
    if code != 0:
        raise EmbeddedError(f"initdb failed:\n{output}")


def _create_database(binaries: Binaries, data: Path, account: Account | None) -> None:
    """Create the database in single-user mode, before anyone can connect. Its exit code does not show an error."""
    command = [binaries.bin_dir / "postgres", "--single", "-D", data, "postgres"]
    code, output = run(command, account, f"CREATE DATABASE {DATABASE};\n")
    if code != 0 or re.search(r"(ERROR|FATAL|PANIC): ", output):
        raise EmbeddedError(f"cannot create the database {DATABASE}:\n{output}")


def supported(
    settings: Mapping[str, str], state: StateDir, binaries: Binaries, account: Account | None
) -> dict[str, str]:
    """Return the settings that this PostgreSQL supports, with a warning for others. Wheels lack lz4, ICU and TLS."""
    known: dict[str, str] = {}
    for name, value in settings.items():
        command = [binaries.bin_dir / "postgres", "-D", state.pgdata, "-c", f"{name}={value}", "-C", "data_directory"]
        code, output = run(command, account)
        if code == 0:
            known[name] = value
        else:
            logger.warning("the setting %s=%s is not supported and skipped: %s", name, value, output)
    return known
