"""Settings of PostgreSQL that hurt."""

from skep.cli.checks.finding import Finding, Patient, fail, ok, warn

OLDEST, NEWEST = 14, 18
SHORT = 10_000  # milliseconds; retention, samples and installs may take longer
TIMEOUTS = ("statement_timeout", "transaction_timeout")  # the second one since PostgreSQL 17
TABLES_OFF = """
    SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL pg_options_to_table(c.reloptions) o
    WHERE n.nspname = 'skep' AND o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean
"""
MILLISECONDS = "SELECT name, setting::bigint FROM pg_settings WHERE name = ANY (%s) AND setting::bigint > 0"


def version(patient: Patient) -> Finding:
    return judge_version(patient.connection.info.server_version)


def judge_version(number: int) -> Finding:
    found = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number < OLDEST * 10000:
        return fail(f"{found} is too old", f"Skep needs {OLDEST} or newer")
    if number >= (NEWEST + 1) * 10000:
        return warn(f"{found} is newer than Skep was tested with", f"use {NEWEST}, or look for a newer Skep")
    return ok(found)


def encoding(patient: Patient) -> Finding:
    found = patient.setting("server_encoding") or ""
    if found != "UTF8":
        return fail(found, "create the database with ENCODING 'UTF8' TEMPLATE template0")
    return ok(found)


def writable(patient: Patient) -> Finding:
    (standby,) = patient.row("SELECT pg_is_in_recovery()")
    if standby:
        return fail("this is a standby: it takes no messages", "connect to the primary")
    if patient.setting("default_transaction_read_only") == "on":
        return fail("transactions are read only", "set default_transaction_read_only = off for this user and database")
    return ok("yes")


def durability(patient: Patient) -> Finding:
    off = [name for name in ("fsync", "full_page_writes") if patient.setting(name) == "off"]
    if off:
        return fail(f"{' and '.join(off)} off: a crash may destroy the database", f"turn {' and '.join(off)} on")
    if patient.setting("synchronous_commit") == "off":
        advice = "turn synchronous_commit on, unless you can push and do the last half second again"
        return warn("synchronous_commit is off: a crash takes the last messages and answers", advice)
    return ok("what is confirmed survives a crash")


def isolation(patient: Patient) -> Finding:
    found = patient.setting("default_transaction_isolation") or ""
    if found != "read committed":
        advice = "set default_transaction_isolation = 'read committed' for this user and database"
        return fail(f"{found}: pushes to the same partition at once fail", advice)
    return ok(found)


def timeouts(patient: Patient) -> Finding:
    found = patient.connection.execute(MILLISECONDS, [list(TIMEOUTS)]).fetchall()
    short = [f"{name} is {value / 1000:g} s" for name, value in found if value < SHORT]
    if short:
        advice = f"give the user of Skep {SHORT // 1000} s or more, or none: retention and installs take their time"
        return warn(", ".join(short), advice)
    return ok(", ".join(f"{name} is {value / 1000:g} s" for name, value in found) or "none")


def autovacuum(patient: Patient) -> Finding:
    """Without it the small hot tables grow without end, and every pop reads all of it."""
    off = [name for name in ("autovacuum", "track_counts") if patient.setting(name) == "off"]
    if off:
        return fail(f"{' and '.join(off)} off: dead rows are never removed", f"turn {' and '.join(off)} on")
    (tables,) = patient.row(TABLES_OFF)
    if tables:
        return fail(f"off for {tables}", "ALTER TABLE skep.… RESET (autovacuum_enabled)")
    return ok("on")
