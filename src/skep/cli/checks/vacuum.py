"""Checks for dead rows, and for the transactions and slots that keep vacuum from removing them."""

from skep.cli.checks.result import CheckedDatabase, CheckResult, fail, ok, warn
from skep.cli.show import duration, one_line

IDLE = 60  # seconds that a transaction may be idle
LONG = 300  # seconds that a transaction may run
TOO_LONG = 3600
GIB = 1024**3
RETAINED_WAL = GIB  # bytes of WAL that a slot may retain
OLD_XMIN = 1_000_000  # age of a slot's xmin in transactions
DEAD_ROWS = 50_000
DEAD_SHARE = 0.2

# Transactions in other databases count once they have written, because they too limit the pruning of the journal.
OLDEST = """
    SELECT pid, coalesce(usename, '?'), coalesce(nullif(application_name, ''), '?'), datname, state,
           extract(epoch FROM clock_timestamp() - xact_start)::double precision
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL
      AND (datname = current_database() OR backend_xid IS NOT NULL)
    ORDER BY xact_start
"""
HIDDEN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type IS NULL AND usesysid IS NOT NULL AND NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
PREPARED = """
    SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::double precision
    FROM pg_prepared_xacts ORDER BY prepared
"""
SLOTS = """
    SELECT slot_name, active, coalesce(pg_wal_lsn_diff(wal.now, restart_lsn), 0)::bigint,
           coalesce(greatest(age(xmin), age(catalog_xmin)), 0)
    FROM pg_replication_slots
    CROSS JOIN (
        SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END
    ) AS wal (now)
    ORDER BY 3 DESC
"""
ROWS = """
    SELECT relname, n_live_tup, n_dead_tup,
           extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::double precision
    FROM pg_stat_user_tables WHERE schemaname = 'skep' ORDER BY n_dead_tup DESC
"""


def transactions(db: CheckedDatabase) -> CheckResult:
    found = [row for row in db.rows(OLDEST) if row[5] > (IDLE if row[4] != "active" else LONG)]
    if found:
        pid, user, program, database, state, seconds = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"process {pid} ({user}, {program}, database {database}) has been {state} for {duration(seconds)}{more}"
        advice = f"end it: SELECT pg_terminate_backend({pid}); idle_in_transaction_session_timeout prevents it"
        return (fail if seconds > TOO_LONG else warn)(one_line(text), advice)
    (hidden,) = db.row(HIDDEN)
    if hidden:
        return warn(
            f"no long transaction is visible; {hidden} sessions are hidden from this user",
            "GRANT pg_read_all_stats TO the user",
        )
    return ok("no transaction has been open for long")


def prepared(db: CheckedDatabase) -> CheckResult:
    found = [row for row in db.rows(PREPARED) if row[2] > IDLE]
    if not found:
        return ok("no prepared transaction is left behind")
    gid, owner, seconds = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    text = one_line(f"transaction '{gid}' of {owner} has been prepared for {duration(seconds)}{more}")
    advice = one_line(f"ROLLBACK PREPARED '{gid}', or COMMIT PREPARED if its coordinator has decided to commit")
    return (fail if seconds > TOO_LONG else warn)(text, advice)


def slots(db: CheckedDatabase) -> CheckResult:
    """Check replication slots. A slot without a reader retains WAL until the disk is full."""
    found = db.rows(SLOTS)
    bad = [row for row in found if not row[1] or row[2] > RETAINED_WAL or row[3] > OLD_XMIN]
    if not bad:
        return ok(f"{len(found)} replication slots, all active" if found else "no replication slots")
    name, active, retained, xmin_age = bad[0]
    state = "is active" if active else "has no reader"
    size = f"{retained / GIB:.2f} GiB of WAL and the dead rows of {xmin_age:,} transactions"
    text = f"replication slot {name} {state}, retains {size}"
    advice = one_line(f"start its reader again, or SELECT pg_drop_replication_slot('{name}')")
    return (fail if retained > RETAINED_WAL and not active else warn)(one_line(text), advice)


def dead_rows(db: CheckedDatabase) -> CheckResult:
    bad = [row for row in db.rows(ROWS) if row[2] > DEAD_ROWS and row[2] > DEAD_SHARE * (row[1] + row[2])]
    if not bad:
        return ok("few dead rows")
    name, live, dead, vacuumed = bad[0]
    when = "never" if vacuumed is None else f"{duration(vacuumed)} ago"
    text = f"skep.{name} has {dead:,} dead and {live:,} live rows; last vacuum: {when}"
    return warn(text, f"end long transactions (see the checks above), then run VACUUM skep.{name}")
