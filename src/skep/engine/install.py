"""Install, upgrade, verify and uninstall the schema `skep`.

    the database has               install                                 verify, the start-up check
    no schema                      installs everything                     error: run `skep install`
    the same schema                does nothing, takes no lock             succeeds
    fewer migrations, older code   applies migrations, re-creates code     error: run `skep install`
    more migrations, newer code    error: upgrade the package              error: upgrade the package
    a migration with other text    error                                   error
    the first edition              error: use a new database               error: use a new database

An install is one transaction under an advisory lock, so any number of them may run at once. It needs no superuser:
CREATE on the database is enough, and without CREATEROLE the roles are not created.
"""

import logging
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import DeadlockDetected, Diagnostic, LockNotAvailable, WrongObjectType
from psycopg.rows import TupleRow, tuple_row

from skep.config import check_database_url, display_database_url
from skep.engine.sources import Migration, Sources, SqlFile, packaged
from skep.errors import DatabaseUnavailable, PermissionDenied, SchemaMismatch, TransientError, from_sqlstate

log = logging.getLogger("skep.install")
T = TypeVar("T")

LOCK = 0x736B6570  # "skep"
CONNECT_SECONDS = 10
ATTEMPTS = 20

INSTALL_COMMAND = "run `skep install`"
UPGRADE_COMMAND = "upgrade the skep package: pip install --upgrade skep"
INSTALL_RIGHTS = "installing needs CREATE on the database, upgrading and uninstalling the owner of schema skep"
USE_RIGHTS = "grant the user skep_producer, skep_consumer or skep_admin"
ROLES = ("skep_producer", "skep_consumer", "skep_admin")
LOST_GRANT = "01007"  # the SQLSTATE of a warning: privilege_not_granted
FIRST_EDITION = "0001_create_log"  # its first migration

# Dropping a trigger locks its table. The install gives up before deadlock_timeout (1 s), so that PostgreSQL never
# cancels a transaction of a user, and users wait for the install for at most half a second.
SETTINGS = """\
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '500ms';
SET LOCAL check_function_bodies = off;
SET LOCAL search_path = pg_catalog, pg_temp"""
LOCK_INSTALLS = "SELECT pg_catalog.pg_advisory_xact_lock(%(lock)s)"
# Not to_regclass(): waiting for an advisory lock does not invalidate the catalog cache, which it would use.
IS_INSTALLED = """
    SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = 'skep' AND c.relname = 'schema_info')
"""
# COPY, because the schema may belong to another user: COPY refuses a view, whose functions would run with our rights.
READ_MIGRATIONS = "COPY skep.migrations (number, name, checksum) TO STDOUT"
READ_INFO = "COPY skep.schema_info (package, functions_checksum) TO STDOUT"
NO_POLICIES = "SET LOCAL row_security = off"  # refuses tables with policies, which could call functions as well
MISSING_ROLES = """
    SELECT role FROM pg_catalog.unnest(%(roles)s::text[]) WITH ORDINALITY AS wanted (role, n)
    WHERE pg_catalog.to_regrole(role) IS NULL ORDER BY n
"""
RECORD_MIGRATION = "INSERT INTO skep.migrations (number, name, checksum) VALUES (%(number)s, %(name)s, %(checksum)s)"
RECORD_INFO = """
    INSERT INTO skep.schema_info (version, package, functions_checksum)
    VALUES (%(version)s, %(package)s, %(functions_checksum)s)
    ON CONFLICT (the_only_row) DO UPDATE
    SET version = excluded.version, package = excluded.package,
        functions_checksum = excluded.functions_checksum, installed_at = excluded.installed_at
"""


@dataclass(frozen=True, slots=True)
class InstallReport:
    """The outcome of an install.

    `migrations` were applied. `functions` is true if the functions were re-created. `missing_roles` do not exist,
    because creating them needs CREATEROLE. `lost_grants` are users' grants on functions and views that no longer exist.
    """

    version: int
    migrations: tuple[str, ...] = ()
    functions: bool = False
    missing_roles: tuple[str, ...] = ()
    lost_grants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Installed:
    """The recorded state of a database; `migrations` are (number, name, checksum)."""

    migrations: tuple[tuple[int, str, str], ...] = ()
    package: str = ""
    functions_checksum: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """The work of an install. A migration always re-creates the code, because it may have dropped triggers."""

    migrations: tuple[Migration, ...]
    functions: bool


def install(
    conninfo: str, sources: Sources | None = None, *, again: bool = False, data_dir: Path | None = None
) -> InstallReport:
    """Bring a database to the schema of this package.

    `again` re-creates functions, roles and grants even if nothing has changed. `data_dir` is the folder of an embedded
    database, for error messages.
    """
    wanted = sources or packaged()
    with _translate_errors(INSTALL_RIGHTS), _connect(conninfo) as connection:
        with connection.transaction():
            connection.execute(NO_POLICIES)
            installed = _read(connection)
        _refuse_first_edition(installed, wanted, connection.info.dbname, data_dir)
        if not (pending(installed, wanted, data_dir).functions or again):
            return InstallReport(wanted.version, missing_roles=_missing_roles(connection))
        return _retry_while_locked(lambda: _install_once(connection, wanted, again=again))


def uninstall(conninfo: str, sources: Sources | None = None) -> None:
    """Drop the schema with all queues and messages. Keep the roles, because other databases may use them."""
    wanted = sources or packaged()
    with _translate_errors(INSTALL_RIGHTS), _connect(conninfo) as connection:
        _retry_while_locked(lambda: _uninstall_once(connection, wanted))


def verify(connection: psycopg.Connection[Any], sources: Sources | None = None) -> None:
    """Raise SchemaMismatch, with the command to run, if the schema of a database is not that of this package."""
    wanted = sources or packaged()
    with _translate_errors(USE_RIGHTS), connection.transaction():
        installed = _read(connection)
    name = connection.info.dbname
    if installed == Installed():
        raise _not_installed(name)
    _refuse_first_edition(installed, wanted, name)
    todo = pending(installed, wanted)
    if todo.migrations:
        have = len(installed.migrations)
        message = f'database "{name}" has schema version {have} of Skep, this package needs {wanted.version}'
        raise SchemaMismatch(message, hint=INSTALL_COMMAND)
    if todo.functions:
        raise SchemaMismatch(f'the functions in database "{name}" are not those of this package', hint=INSTALL_COMMAND)


def pending(installed: Installed, wanted: Sources, data_dir: Path | None = None) -> Pending:
    """Return what to install; raise SchemaMismatch if the database is newer or has another history."""
    known = {migration.number: migration for migration in wanted.migrations}
    for number, name, checksum in installed.migrations:
        if number not in known:
            raise SchemaMismatch(f"the database has migration {name}, newer than this package", hint=UPGRADE_COMMAND)
        if known[number].checksum != checksum:
            message = f"migration {name} in the database is not the one of this package"
            hint = f"use the build that installed it (skep {installed.package}), or {_upgrade_hint(data_dir)}"
            raise SchemaMismatch(message, hint=hint)
    applied = {number for number, _, _ in installed.migrations}
    missing = tuple(migration for migration in wanted.migrations if migration.number not in applied)
    stale = installed.functions_checksum != wanted.functions_checksum
    if stale and _release(installed.package) > _release(wanted.package):
        message = f"the database was installed by skep {installed.package}, this is {wanted.package}"
        raise SchemaMismatch(message, hint=UPGRADE_COMMAND)
    return Pending(missing, functions=stale or bool(missing))


def _release(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", package)[:3])


def _not_installed(database: str) -> SchemaMismatch:
    return SchemaMismatch(f'Skep is not installed in database "{database}"', hint=INSTALL_COMMAND)


def _refuse_first_edition(installed: Installed, wanted: Sources, database: str, data_dir: Path | None = None) -> None:
    names = {name for _, name, _ in installed.migrations}
    if FIRST_EDITION not in names or FIRST_EDITION in {migration.name for migration in wanted.migrations}:
        return
    holder = f'database "{database}"' if data_dir is None else f"the embedded database in {data_dir}"
    message = f"{holder} holds the first edition of Skep, whose tables cannot be upgraded"
    raise SchemaMismatch(message, detail="the package that installed it can drain it", hint=_upgrade_hint(data_dir))


def _upgrade_hint(data_dir: Path | None) -> str:
    """Return a hint for a database that cannot be upgraded; `data_dir` is the folder of an embedded one."""
    if data_dir is None:
        return "drain it and install into a new database, or run `skep uninstall` first, which deletes its messages"
    return f"drain it and move the folder {data_dir} away, or choose another folder with --data-dir or SKEP_DATA_DIR"


def _retry_while_locked(work: Callable[[], T]) -> T:
    """Call `work` again while other transactions hold locks, and release all locks in between."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except (LockNotAvailable, DeadlockDetected):
            time.sleep(0.05 * attempt)
    message = "the tables of Skep are locked by other transactions"
    raise TransientError(message, hint="end long transactions (pg_stat_activity shows them), and run the command again")


def _install_once(connection: psycopg.Connection[TupleRow], wanted: Sources, *, again: bool) -> InstallReport:
    with connection.transaction(), _collect_lost_grants(connection) as lost_grants:
        connection.execute(LOCK_INSTALLS, {"lock": LOCK})
        connection.execute(NO_POLICIES)
        todo = pending(_read(connection), wanted)
        if not (todo.functions or again):  # another install was faster
            return InstallReport(wanted.version, missing_roles=_missing_roles(connection))
        connection.execute(SETTINGS)
        _run(connection, wanted.bootstrap)
        _run(connection, wanted.drop_code)
        for migration in todo.migrations:
            _run(connection, migration)
            _record(connection, migration)
        for file in wanted.functions:
            _run(connection, file)
        _run(connection, wanted.restore_grants)
        info = {"version": wanted.version, "package": wanted.package, "functions_checksum": wanted.functions_checksum}
        connection.execute(RECORD_INFO, info)
        return InstallReport(
            wanted.version,
            tuple(migration.name for migration in todo.migrations),
            functions=True,
            missing_roles=_missing_roles(connection),
            lost_grants=tuple(lost_grants),
        )


def _uninstall_once(connection: psycopg.Connection[TupleRow], wanted: Sources) -> None:
    with connection.transaction():
        connection.execute(LOCK_INSTALLS, {"lock": LOCK})
        connection.execute(NO_POLICIES)
        if _read(connection) == Installed():
            raise _not_installed(connection.info.dbname)
        connection.execute(SETTINGS)
        _run(connection, wanted.drop_code)
        _run(connection, wanted.drop_schema)


@contextmanager
def _collect_lost_grants(connection: psycopg.Connection[TupleRow]) -> Generator[list[str]]:
    """Collect the warnings of restore_grants.sql."""
    lost_grants: list[str] = []

    def collect(notice: Diagnostic) -> None:
        if notice.sqlstate == LOST_GRANT:
            lost_grants.append(notice.message_detail or "")

    connection.add_notice_handler(collect)
    try:
        yield lost_grants
    finally:
        connection.remove_notice_handler(collect)


def _missing_roles(connection: psycopg.Connection[TupleRow]) -> tuple[str, ...]:
    return tuple(role for (role,) in connection.execute(MISSING_ROLES, {"roles": list(ROLES)}))


def _record(connection: psycopg.Connection[TupleRow], migration: Migration) -> None:
    row = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
    connection.execute(RECORD_MIGRATION, row)


def _run(connection: psycopg.Connection[TupleRow], file: SqlFile) -> None:
    log.info("running %s", file.name)
    try:
        connection.execute(file.sql.encode())
    except psycopg.Error as error:
        error.add_note(file.locate(error.diag.statement_position))
        raise


def _read(connection: psycopg.Connection[Any]) -> Installed:
    with connection.cursor(row_factory=tuple_row) as cursor:
        if cursor.execute(IS_INSTALLED).fetchone() != (True,):
            return Installed()
        migrations = sorted((int(number), name, checksum) for number, name, checksum in _copy(cursor, READ_MIGRATIONS))
        package, functions_checksum = next(iter(_copy(cursor, READ_INFO)), ("", ""))
        return Installed(tuple(migrations), package, functions_checksum)


def _copy(cursor: psycopg.Cursor[TupleRow], query: LiteralString) -> list[tuple[str, ...]]:
    try:
        with cursor.copy(query) as rows:
            return list(rows.rows())
    except WrongObjectType as error:
        message = "the schema skep was not created by Skep"
        raise SchemaMismatch(message, detail=str(error), hint="drop or rename it, and run `skep install`") from error


def _connect(conninfo: str) -> psycopg.Connection[TupleRow]:
    check_database_url(conninfo)
    try:
        connection = psycopg.connect(
            conninfo,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=patience(conninfo),
            client_encoding="utf8",
        )
    except psycopg.OperationalError as error:
        raise cannot_connect(conninfo, error) from error
    # At a stricter level, a transaction would not see what others committed while it waited for the lock.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


def patience(conninfo: str) -> int:
    """Return the seconds to wait for a server that does not respond: `connect_timeout` of the URL, or the default."""
    return int(conninfo_to_dict(conninfo).get("connect_timeout") or CONNECT_SECONDS)


def cannot_connect(conninfo: str, error: Exception) -> DatabaseUnavailable:
    """Return the error for a database that cannot be reached; it names the database without the password."""
    message = f"cannot connect to {display_database_url(conninfo)}"
    hint = "is PostgreSQL running there, and are user, password and database name right?"
    return DatabaseUnavailable(message, detail=str(error).strip(), hint=hint)


@contextmanager
def _translate_errors(rights: str) -> Generator[None]:
    """Turn the driver's errors into Skep's, with a hint about missing rights."""
    try:
        yield
    except psycopg.Error as error:
        known = from_sqlstate(error)
        if known is None:
            raise
        if isinstance(known, PermissionDenied):
            known = PermissionDenied(known.message, detail=known.detail, hint=known.hint or rights)
        raise known from error
