"""The files in a data directory, and what the supervisor writes there about its server."""

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
    if not data_home.is_absolute():  # the specification says to ignore a relative one
        data_home = _home() / ".local" / "share"
    return data_home / "skep"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise EmbeddedError("this user has no home directory; set SKEP_DATA_DIR") from error


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """What the supervisor knows of its server. The postmaster is 0 until it runs; a failure is final."""

    port: int = 0
    postmaster: int = 0
    ready: bool = False
    failure: str | None = None


class StateDir:
    """One data directory: PostgreSQL's own directory, and beside it what Skep keeps about it."""

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
        self.probe_lock = root / "probe.lock"
        self.postgres_log = root / "postgres.log"
        self.supervisor_log = root / "supervisor.log"
        self._record = root / "server.json"

    @classmethod
    def at(cls, path: Path | str) -> "StateDir":
        return cls(Path(path).resolve())

    def prepare(self) -> None:
        """Create the directory; say clearly why it cannot be used, if so."""
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
        if ours and os.geteuid() == 0:  # an empty 0700 directory, as mkdtemp makes it, given to us
            self.root.chmod(self.root.stat().st_mode & 0o7777 | 0o011)

    def _require_reach(self) -> None:
        account = server_account(self.pgdata)
        if account is not None and (wall := blocker(self.root, account)) is not None:
            raise EmbeddedError(
                f"cannot use {self.root} as data directory: PostgreSQL does not run as root, and the user"
                f" {account.name}, as whom it runs, may not pass {wall}; choose another with SKEP_DATA_DIR"
            )

    def major(self) -> int | None:
        """Return the major version of PostgreSQL that made the data, None if there is none yet."""
        try:
            return int((self.pgdata / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def read_record(self) -> ServerRecord:
        try:
            return ServerRecord(**json.loads(self._record.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):  # none yet, or of another version of Skep
            return ServerRecord()

    def write_record(self, record: ServerRecord) -> None:
        draft = self._record.with_suffix(".new")
        draft.write_text(json.dumps(asdict(record)))
        draft.replace(self._record)


def tail(log: Path, start: int = 0) -> str:
    """Return the last lines of a log, none from before byte `start`."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
