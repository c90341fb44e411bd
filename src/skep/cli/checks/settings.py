"""Checks of PostgreSQL settings."""

from skep.cli.checks.result import CheckedDatabase, CheckResult, fail, ok, warn

OLDEST, NEWEST = 14, 18
SHORT = 10_000  # milliseconds; retention, samples and installs may take longer
TIMEOUTS = ("statement_timeout", "transaction_timeout")  # the second one since PostgreSQL 17
TABLES_OFF = """
    SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL pg_options_to_table(c.reloptions) o
    WHERE n.nspname = 'skep' AND o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean
"""
MILLISECONDS = "SELECT name, setting::bigint FROM pg_settings WHERE name = ANY (%s) AND setting::bigint > 0"


def version(db: CheckedDatabase) -> CheckResult:
    return check_version(db.connection.info.server_version)


def check_version(number: int) -> CheckResult:
    found = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number < OLDEST * 10000:
        return fail(f"{found} is too old", f"use PostgreSQL {OLDEST} or newer")
    if number >= (NEWEST + 1) * 10000:
        return warn(
            f"{found} is newer than Skep was tested with", f"use PostgreSQL {NEWEST}, or a newer version of Skep"
        )
    return ok(found)


def encoding(db: CheckedDatabase) -> CheckResult:
    found = db.setting("server_encoding") or ""
    if found != "UTF8":
        return fail(found, "create the database with ENCODING 'UTF8' TEMPLATE template0")
    return ok(found)


def writable(db: CheckedDatabase) -> CheckResult:
    (standby,) = db.row("SELECT pg_is_in_recovery()")
    if standby:
        return fail("the server is a standby, which cannot store messages", "connect to the primary")
    if db.setting("default_transaction_read_only") == "on":
        return fail("transactions are read only", "set default_transaction_read_only = off for this user and database")
    return ok("yes")


def durability(db: CheckedDatabase) -> CheckResult:
    off = [name for name in ("fsync", "full_page_writes") if db.setting(name) == "off"]
    if off:
        return fail(f"{' and '.join(off)} off: a crash may destroy the database", f"turn {' and '.join(off)} on")
    if db.setting("synchronous_commit") == "off":
        advice = "turn synchronous_commit on, unless you can repeat the pushes and acks of the last half second"
        return warn("synchronous_commit is off: a crash loses the last messages and acks", advice)
    return ok("committed transactions survive a crash")


def isolation(db: CheckedDatabase) -> CheckResult:
    found = db.setting("default_transaction_isolation") or ""
    if found != "read committed":
        advice = "set default_transaction_isolation = 'read committed' for this user and database"
        return fail(f"{found}: concurrent pushes to the same partition fail", advice)
    return ok(found)


def timeouts(db: CheckedDatabase) -> CheckResult:
    found = db.connection.execute(MILLISECONDS, [list(TIMEOUTS)]).fetchall()
    short = [f"{name} is {value / 1000:g} s" for name, value in found if value < SHORT]
    if short:
        advice = (
            f"set at least {SHORT // 1000} s, or no timeout, for the user of Skep: retention and installs take long"
        )
        return warn(", ".join(short), advice)
    return ok(", ".join(f"{name} is {value / 1000:g} s" for name, value in found) or "none")


def autovacuum(db: CheckedDatabase) -> CheckResult:
    """Check that autovacuum is on. Without it the small hot tables grow without limit, and every pop slows down."""
    off = [name for name in ("autovacuum", "track_counts") if db.setting(name) == "off"]
    if off:
        return fail(f"{' and '.join(off)} off: dead rows are never removed", f"turn {' and '.join(off)} on")
    (tables,) = db.row(TABLES_OFF)
    if tables:
        return fail(f"off for {tables}", "ALTER TABLE skep.… RESET (autovacuum_enabled)")
    return ok("on")
