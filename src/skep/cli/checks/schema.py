"""Checks of the schema, roles, upkeep and encryption of Skep."""

import os
import time

from skep.cli.checks.result import CheckedDatabase, CheckResult, fail, ok, warn
from skep.cli.show import duration, one_line
from skep.config import env_name
from skep.engine.install import verify
from skep.engine.sources import packaged
from skep.errors import ConfigError, SkepError

MAX_SAMPLE_AGE = 120  # seconds; upkeep takes a sample every 10 s
MAX_JOURNAL_AGE = 900  # seconds; upkeep keeps 10 min
MAX_OUTBOX_AGE = 3  # seconds; upkeep publishes committed rows every second
KEYS = env_name("encryption_keys")

ROLES = """
    SELECT required.right, required.role, role.oid IS NOT NULL,
           coalesce(has_schema_privilege(role.oid, 'skep', 'USAGE'), false) AND EXISTS (
               SELECT FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = required.function
                  AND has_function_privilege(role.oid, p.oid, 'EXECUTE')),
           has_schema_privilege('skep', 'USAGE') AND EXISTS (
               SELECT FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = required.function
                  AND has_function_privilege(p.oid, 'EXECUTE'))
    FROM (VALUES (1, 'push', 'skep_producer', 'push'), (2, 'pop', 'skep_consumer', 'pop'),
                 (3, 'administer', 'skep_admin', 'queue_status')) AS required (n, "right", role, function)
    LEFT JOIN pg_roles role ON role.rolname = required.role
    ORDER BY required.n
"""
# The last sample, and the oldest row of each queue in the journal, both read by index.
UPKEEP = """
    SELECT EXISTS (SELECT FROM skep.queues), extract(epoch FROM clock_timestamp() - sample.at)::double precision,
           extract(epoch FROM clock_timestamp() - journal.oldest_at)::double precision
    FROM (SELECT max(s.at) AS at FROM skep.samples s) sample
    CROSS JOIN (
        SELECT min(j.created_at) AS oldest_at FROM skep.queues q
        CROSS JOIN LATERAL (SELECT * FROM skep.journal j WHERE j.queue_id = q.id ORDER BY j.xid, j.id LIMIT 1) j
    ) journal
"""
OUTBOX = "SELECT waiting FROM skep.outbox_status()"
CONSISTENCY = "SELECT invariant, broken FROM skep.check_consistency()"
MAINTENANCE = "SELECT push, pop, held, refused FROM skep.maintenance_mode()"
ENCRYPTED = "SELECT name FROM skep.queues WHERE encryption_enabled ORDER BY name"


def schema(db: CheckedDatabase) -> CheckResult:
    try:
        verify(db.connection)
    except SkepError as error:
        return fail(error.message, error.hint or "run `skep install`")
    return ok(f"version {packaged().version}, the version of this package")


def roles(db: CheckedDatabase) -> CheckResult:
    """Check the roles. A dump does not contain them, so a restore can lose their grants."""
    found = db.rows(ROLES)
    if lacking := [role for _, role, exists, granted, _ in found if exists and not granted]:
        return fail(
            f"{', '.join(lacking)} may not use the schema", "run `skep install --again`, which restores the grants"
        )
    (user,) = db.row("SELECT current_user")
    may = [right for right, _, _, _, mine in found if mine]
    if not may:
        return fail(one_line(f"{user} has no rights"), one_line(f"GRANT skep_producer, skep_consumer TO {user}"))
    rights = f"{user} may {', '.join(may)}"
    if missing := [role for _, role, exists, _, _ in found if not exists]:
        advice = "let a user with CREATEROLE create them and run `skep install --again`, or grant single functions"
        return warn(one_line(f"{rights}; {', '.join(missing)} do not exist"), advice)
    return ok(one_line(rights))


def upkeep(db: CheckedDatabase) -> CheckResult:
    used, sampled, journal = db.row(UPKEEP)
    if not used:
        return ok("not needed yet: there are no queues")
    advice = "run `skep serve` or `skep upkeep`: without them nothing is deleted, and no group is declared dead"
    if sampled is None or sampled > MAX_SAMPLE_AGE:
        return warn(
            "no upkeep has ever run" if sampled is None else f"the last sample is {duration(sampled)} old", advice
        )
    if journal is not None and journal > MAX_JOURNAL_AGE:
        advice = "an open transaction keeps it (see above), or the pruner fails (run `skep upkeep --once`)"
        return warn(f"the journal is {duration(journal)} old, and should not be older than 10 min", advice)
    return ok(f"the last sample is {duration(sampled)} old")


def outbox(db: CheckedDatabase) -> CheckResult:
    """Check the outbox for rows that upkeep does not publish. It publishes every second."""
    (before,) = db.row(OUTBOX)
    if before:
        time.sleep(MAX_OUTBOX_AGE)
    (waiting,) = db.row(OUTBOX)
    if not (before and waiting):
        return ok("no committed rows wait to be published")
    advice = "run `skep serve` or `skep upkeep`; if one runs, a transaction locks a partition or a queue refuses them"
    return warn(f"{waiting:,} committed rows wait to be published", advice)


def log(db: CheckedDatabase) -> CheckResult:
    """Check the consistency of the log by reading every message."""
    broken = [f"{invariant}: {number:,} violations" for invariant, number in db.rows(CONSISTENCY) if number]
    if broken:
        advice = "stop the consumers and SELECT skep.resync_partition_lookup(); if that does not help, restore a backup"
        return fail("; ".join(broken), advice)
    return ok("consistent")


def maintenance(db: CheckedDatabase) -> CheckResult:
    push, pop, held, refused = db.row(MAINTENANCE)
    states = [text for on, text in ((push, "servers hold pushes"), (pop, "servers deliver nothing")) if on]
    if states:
        return warn(f"on: {' and '.join(states)}", "run `skep maintenance end`")
    if refused:
        return warn(
            f"off, but {refused:,} held requests were refused", "see the reason with SELECT error FROM skep.held_pushes"
        )
    return ok(f"off, {held:,} held messages wait" if held else "off")


def encryption(db: CheckedDatabase) -> CheckResult:
    names = [one_line(name) for (name,) in db.rows(ENCRYPTED)]
    if not names:
        return ok("no queue is encrypted")
    which = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''} encrypted"  # noqa: PLR2004
    text = os.environ.get(KEYS)
    if not text:
        advice = f"set {KEYS} where `skep serve` runs: without it these queues cannot be used"
        return warn(f"{which}, but {KEYS} is not set here", advice)
    try:
        from skep.server.work.crypt import Keyring

        Keyring.load(text)
    except ConfigError as error:
        return fail(f"{which}, but {error.message}", error.hint or f"set {KEYS}")
    return ok(f"{which}, and the keys are valid")
