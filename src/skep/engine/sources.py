"""The SQL files of the engine: migrations are state and run once, functions are code and are re-created together."""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
MIGRATION_NAME = re.compile(r"(?P<number>\d{4})_[a-z0-9_]+")
CODE_NAME = re.compile(r"[a-z0-9_]+")
FOLDERS = ("log", "read", "observe", "queen")  # used by: everyone, pipelines, people and reports, Queen's protocol


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One .sql file: its name without the suffix, and its text."""

    name: str
    sql: str

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(path.stem, path.read_text(encoding="utf-8"))

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def locate(self, position: str | None) -> str:
        """Return the file and line of a character position from a PostgreSQL error."""
        line = self.sql.count("\n", 0, int(position) - 1) + 1 if position else "?"
        return f"in {self.name}.sql, line {line}"


@dataclass(frozen=True, slots=True)
class Migration(SqlFile):
    """A numbered step of the state, applied once and never changed afterwards."""

    @property
    def number(self) -> int:
        return int(self.name[:4])


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of an install, in order from bootstrap to restore_grants, and drop_schema for an uninstall."""

    package: str
    bootstrap: SqlFile
    drop_code: SqlFile
    migrations: tuple[Migration, ...]
    functions: tuple[SqlFile, ...]
    restore_grants: SqlFile
    drop_schema: SqlFile

    @classmethod
    def read(cls, migrations: Path = HERE / "migrations", sql: Path = HERE / "sql") -> Self:
        return cls(
            package=version("skep"),
            bootstrap=SqlFile.read(HERE / "bootstrap.sql"),
            drop_code=SqlFile.read(HERE / "drop_code.sql"),
            migrations=tuple(Migration.read(path) for path in _sql_files(migrations, MIGRATION_NAME)),
            functions=_read_code(sql),
            restore_grants=SqlFile.read(HERE / "restore_grants.sql"),
            drop_schema=SqlFile.read(HERE / "drop_schema.sql"),
        )

    def __post_init__(self) -> None:
        numbers = [migration.number for migration in self.migrations]
        if numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"migrations must be numbered 0001, 0002, … without a gap, got {numbers}")

    @property
    def version(self) -> int:
        return len(self.migrations)

    @property
    def functions_checksum(self) -> str:
        listing = "\n".join(f"{file.name} {file.checksum}" for file in self.functions)
        return hashlib.sha256(listing.encode()).hexdigest()


@cache
def packaged() -> Sources:
    """Return the SQL files that this package ships."""
    return Sources.read()


def _read_code(root: Path) -> tuple[SqlFile, ...]:
    """Read the code in order: rights, the folders, grants. The name of a file includes its folder."""
    paths = [path for folder in FOLDERS for path in _sql_files(root / folder, CODE_NAME)]
    files = [SqlFile(f"{path.parent.name}/{path.stem}", path.read_text(encoding="utf-8")) for path in paths]
    return (SqlFile.read(root / "rights.sql"), *files, SqlFile.read(root / "grants.sql"))


def _sql_files(directory: Path, name: re.Pattern[str]) -> list[Path]:
    paths = sorted(directory.glob("*.sql"))
    wrong = [path.name for path in paths if not name.fullmatch(path.stem)]
    if wrong:
        raise ValueError(f"{directory.name}: names must match {name.pattern}.sql, got {', '.join(wrong)}")
    return paths
