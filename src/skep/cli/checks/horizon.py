"""What keeps dead rows from being removed, and what that has led to."""

from skep.cli.checks.finding import Finding, Patient, fail, ok, warn
from skep.cli.show import one_line, span

IDLE = 60  # seconds that a transaction may do nothing
LONG = 300  # seconds that one may take
TOO_LONG = 3600
GIB = 1024**3
HELD_WAL = GIB  # bytes that a slot may hold
OLD_XMIN = 1_000_000  # transactions since what a slot may see
DEAD_ROWS = 50_000
DEAD_SHARE = 0.2

# In other databases a transaction counts once it has written: the journal is pruned up to the oldest of these.
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


def transactions(patient: Patient) -> Finding:
    found = [row for row in patient.rows(OLDEST) if row[5] > (IDLE if row[4] != "active" else LONG)]
    if found:
        pid, user, program, database, state, seconds = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"process {pid} ({user}, {program}, database {database}) is {state} for {span(seconds)}{more}"
        advice = f"end it: SELECT pg_terminate_backend({pid}); idle_in_transaction_session_timeout does so by itself"
        return (fail if seconds > TOO_LONG else warn)(one_line(text), advice)
    (hidden,) = patient.row(HIDDEN)
    if hidden:
        return warn(f"none that this user may see; {hidden} sessions are hidden", "GRANT pg_read_all_stats TO the user")
    return ok("none is open for long")


def prepared(patient: Patient) -> Finding:
    found = [row for row in patient.rows(PREPARED) if row[2] > IDLE]
    if not found:
        return ok("no prepared transaction is left behind")
    gid, owner, seconds = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    text = one_line(f"transaction '{gid}' of {owner} is prepared since {span(seconds)}{more}")
    advice = one_line(f"ROLLBACK PREPARED '{gid}', or COMMIT PREPARED if whoever coordinates it says so")
    return (fail if seconds > TOO_LONG else warn)(text, advice)


def slots(patient: Patient) -> Finding:
    """A slot nobody reads keeps WAL until the disk is full."""
    found = patient.rows(SLOTS)
    bad = [row for row in found if not row[1] or row[2] > HELD_WAL or row[3] > OLD_XMIN]
    if not bad:
        return ok(f"{len(found)} replication slots, all of them read" if found else "no replication slots")
    name, active, held, old = bad[0]
    state = "is read" if active else "is read by nobody"
    text = f"replication slot {name} {state}, holds {held / GIB:.2f} GiB of WAL and what {old:,} transactions left"
    advice = one_line(f"bring its reader back, or SELECT pg_drop_replication_slot('{name}')")
    return (fail if held > HELD_WAL and not active else warn)(one_line(text), advice)


def dead_rows(patient: Patient) -> Finding:
    bad = [row for row in patient.rows(ROWS) if row[2] > DEAD_ROWS and row[2] > DEAD_SHARE * (row[1] + row[2])]
    if not bad:
        return ok("few")
    name, live, dead, vacuumed = bad[0]
    when = "never" if vacuumed is None else f"{span(vacuumed)} ago"
    text = f"skep.{name} has {dead:,} dead rows beside {live:,}; its last vacuum was {when}"
    return warn(text, f"see what holds them back above; then VACUUM skep.{name}")
