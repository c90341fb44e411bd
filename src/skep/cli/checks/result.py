"""The result of a check, and the database that is checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, LiteralString

import psycopg

CheckStatus = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The status, the finding of a check, and advice unless the status is ok."""

    status: CheckStatus
    found: str
    advice: str | None = None


def ok(found: str) -> CheckResult:
    return CheckResult("ok", found)


def warn(found: str, advice: str) -> CheckResult:
    return CheckResult("warn", found, advice)


def fail(found: str, advice: str) -> CheckResult:
    return CheckResult("fail", found, advice)


@dataclass(frozen=True, slots=True)
class CheckedDatabase:
    """A connection, and the data folder if the database is the embedded one."""

    connection: psycopg.Connection[Any]
    data_dir: Path | None = None

    def rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def row(self, query: LiteralString) -> tuple[Any, ...]:
        return self.rows(query)[0]

    def setting(self, name: str) -> str | None:
        """Return a setting of this user in this database, or None if this PostgreSQL does not have the setting."""
        found = self.connection.execute("SELECT current_setting(%s, true)", [name]).fetchone()
        return found[0] if found else None
