"""Between here and the database."""

import statistics
import time
from datetime import UTC, datetime

from skep.cli.checks.finding import Finding, Patient, fail, ok, warn

SLOW = 0.020  # seconds of a round trip that many small calls would feel
SKEW = 2.0  # seconds by which clocks may differ
LOOKS = 5
NEARLY_FULL = 0.80
FULL = 0.95

BACKENDS = "SELECT sum(numbackends)::bigint FROM pg_stat_database"  # pg_stat_activity hides those of others
RESERVED = ("superuser_reserved_connections", "reserved_connections")  # the second one since PostgreSQL 16


def round_trip(patient: Patient) -> Finding:
    seconds = statistics.median(_timed(patient) for _ in range(LOOKS))
    found = f"{seconds * 1000:.1f} ms"
    if seconds > SLOW:
        return warn(found, "every call waits so long: run nearer to the database, and push and pop many at once")
    return ok(found)


def _timed(patient: Patient) -> float:
    start = time.perf_counter()
    patient.row("SELECT 1")
    return time.perf_counter() - start


def pooler(patient: Patient) -> Finding:
    (backend,) = patient.row("SELECT pg_backend_pid()")
    if backend == patient.connection.info.backend_pid:
        return ok("none: LISTEN works")
    advice = "if looking once a second is too slow for consumers elsewhere, give `skep serve` a direct connection"
    return warn("a pooler stands before the database: no LISTEN, consumers look instead of being told", advice)


def clock(patient: Patient) -> Finding:
    before = datetime.now(UTC)
    (theirs,) = patient.row("SELECT clock_timestamp()")
    after = datetime.now(UTC)
    unsure = (after - before) / 2
    ahead = (theirs - before - unsure).total_seconds()
    if abs(ahead) <= SKEW + unsure.total_seconds():
        return ok(f"the database is within {max(abs(ahead), unsure.total_seconds()):.1f} s of this machine")
    how = "ahead of" if ahead > 0 else "behind"
    advice = "let NTP set both: leases and retention go by the database alone, but tokens and ages shown here do not"
    return warn(f"the database is {abs(ahead):,.0f} s {how} this machine", advice)


def connections(patient: Patient) -> Finding:
    (used,) = patient.row(BACKENDS)
    limit = int(patient.setting("max_connections") or 0)
    free = limit - sum(int(patient.setting(name) or 0) for name in RESERVED)
    found = f"{used} of {free} in use"
    if used < free * NEARLY_FULL:
        return ok(found)
    advice = "raise max_connections, or put PgBouncer before it; a server takes 17, and 7 for upkeep"
    return fail(found, advice) if used >= free * FULL else warn(found, advice)
