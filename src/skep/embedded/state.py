"""The files of a data directory, and the record that the supervisor writes about its server."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from skep.embedded.account import blocker, server_account
from skep.errors import EmbeddedError

_TAIL_LINES = 15
_TAIL_BYTES = 8192


def default_data_dir() -> Path:
    """Return SKEP_DATA_DIR, else /var/lib/skep for root and skep in the data directory of any other user."""
    if chosen := os.environ.get("SKEP_DATA_DIR"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/skep")
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data_home.is_absolute():  # the XDG specification ignores a relative one
        data_home = _home() / ".local" / "share"
    return data_home / "skep"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise EmbeddedError("this user has no home directory; set SKEP_DATA_DIR") from error


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The supervisor's record of its server. The postmaster is 0 until it runs; a failure is final."""

    port: int = 0
    postmaster: int = 0
    ready: bool = False
    failure: str | None = None


class StateDir:
    """A data directory: the directory of PostgreSQL, and the files of Skep next to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pgdata = root / "pgdata"
        self.sockets = root / "sockets"
        self.binaries = root / "binaries"
        self.password = root / "password"
        self.users_lock = root / "users.lock"
        self.start_lock = root / "start.lock"
        self.supervisor_lock = root / "supervisor.lock"
        self.server_lock = root / "server.lock"
        self.leave_lock = root / "leave.lock"
        self.postgres_log = root / "postgres.log"
        self.supervisor_log = root / "supervisor.log"
        self._record = root / "server.json"

    @classmethod
    def at(cls, path: Path | str) -> "StateDir":
        return cls(Path(path).resolve())

    def prepare(self) -> None:
        """Create the directory. Raise an error with the reason if it cannot be used."""
        try:
            self._create()
            if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(f"{self.root} belongs to another user")
        except OSError as error:
            raise EmbeddedError(f"cannot use {self.root} as data directory: {error}") from error
        self._require_reach()

    def _create(self) -> None:
        self.root.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        ours = self.users_lock.exists() or not any(self.root.iterdir())
        if ours and os.geteuid() == 0:  # maybe an empty directory with mode 0700, as mkdtemp creates it
            self.root.chmod(self.root.stat().st_mode & 0o7777 | 0o011)

    def _require_reach(self) -> None:
        account = server_account(self.pgdata)
        if account is not None and (closed := blocker(self.root, account)) is not None:
            raise EmbeddedError(
                f"cannot use {self.root} as data directory: PostgreSQL does not run as root but as user"
                f" {account.name}, who has no access to {closed}; set SKEP_DATA_DIR to another directory"
            )

    def major(self) -> int | None:
        """Return the major version of PostgreSQL that created the data, or None if there is no data yet."""
        try:
            return int((self.pgdata / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def read_record(self) -> ServerRecord:
        try:
            return ServerRecord(**json.loads(self._record.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):  # no record yet, or one of another version of Skep
            return ServerRecord()

    def write_record(self, record: ServerRecord) -> None:
        draft = self._record.with_suffix(".new")
        draft.write_text(json.dumps(asdict(record)))
        draft.replace(self._record)


def tail(log: Path, start: int = 0) -> str:
    """Return the last lines of a log, but nothing before byte `start`."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
