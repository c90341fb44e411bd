"""Checks of the connection to the database."""

import statistics
import time
from datetime import UTC, datetime

from skep.cli.checks.result import CheckedDatabase, CheckResult, fail, ok, warn

SLOW = 0.020  # seconds of a round trip that slow down many small calls
MAX_SKEW = 2.0  # seconds by which clocks may differ
TRIPS = 5
NEARLY_FULL = 0.80
FULL = 0.95

BACKENDS = "SELECT sum(numbackends)::bigint FROM pg_stat_database"  # pg_stat_activity hides those of other users
RESERVED = ("superuser_reserved_connections", "reserved_connections")  # the second one since PostgreSQL 16


def round_trip(db: CheckedDatabase) -> CheckResult:
    seconds = statistics.median(_timed(db) for _ in range(TRIPS))
    found = f"{seconds * 1000:.1f} ms"
    if seconds > SLOW:
        return warn(found, "every call waits this long: run closer to the database, and push and pop in batches")
    return ok(found)


def _timed(db: CheckedDatabase) -> float:
    start = time.perf_counter()
    db.row("SELECT 1")
    return time.perf_counter() - start


def pooler(db: CheckedDatabase) -> CheckResult:
    (backend,) = db.row("SELECT pg_backend_pid()")
    if backend == db.connection.info.backend_pid:
        return ok("none, LISTEN works")
    advice = "if polling once a second is too slow for consumers, give `skep serve` a direct connection"
    return warn("the connection uses a pooler: LISTEN does not work, so consumers poll", advice)


def clock(db: CheckedDatabase) -> CheckResult:
    before = datetime.now(UTC)
    (database_time,) = db.row("SELECT clock_timestamp()")
    after = datetime.now(UTC)
    uncertainty = (after - before) / 2
    ahead = (database_time - before - uncertainty).total_seconds()
    if abs(ahead) <= MAX_SKEW + uncertainty.total_seconds():
        return ok(f"the database is within {max(abs(ahead), uncertainty.total_seconds()):.1f} s of this machine")
    direction = "ahead of" if ahead > 0 else "behind"
    advice = "synchronize both with NTP: JWT checks and the ages shown here use the clock of this machine"
    return warn(f"the database is {abs(ahead):,.0f} s {direction} this machine", advice)


def connections(db: CheckedDatabase) -> CheckResult:
    (used,) = db.row(BACKENDS)
    limit = int(db.setting("max_connections") or 0)
    free = limit - sum(int(db.setting(name) or 0) for name in RESERVED)
    found = f"{used} of {free} in use"
    if used < free * NEARLY_FULL:
        return ok(found)
    advice = "raise max_connections or use PgBouncer; a server uses 17 connections, and 7 for upkeep"
    return fail(found, advice) if used >= free * FULL else warn(found, advice)
