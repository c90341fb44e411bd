"""A finding, and the patient it is about."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, LiteralString

import psycopg

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it unless it is fine."""

    verdict: Verdict
    found: str
    advice: str | None = None


def ok(found: str) -> Finding:
    return Finding("ok", found)


def warn(found: str, advice: str) -> Finding:
    return Finding("warn", found, advice)


def fail(found: str, advice: str) -> Finding:
    return Finding("fail", found, advice)


@dataclass(frozen=True, slots=True)
class Patient:
    """A database, and the directory of its data if it is the embedded one."""

    connection: psycopg.Connection[Any]
    data_dir: Path | None = None

    def rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def row(self, query: LiteralString) -> tuple[Any, ...]:
        return self.rows(query)[0]

    def setting(self, name: str) -> str | None:
        """Return a setting as this user has it in this database; None if this PostgreSQL has no such setting."""
        found = self.connection.execute("SELECT current_setting(%s, true)", [name]).fetchone()
        return found[0] if found else None
