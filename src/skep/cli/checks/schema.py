"""Skep in the database: its schema, who may use it, and whether somebody looks after it."""

import os
import time

from skep.cli.checks.finding import Finding, Patient, fail, ok, warn
from skep.cli.show import one_line, span
from skep.config import env_name
from skep.engine.install import verify
from skep.engine.sources import packaged
from skep.errors import ConfigError, SkepError

SILENT = 120  # seconds without a sample; one is taken every ten
FORGOTTEN = 900  # seconds that a row of the journal may be old; ten minutes are kept
WAITING = 3  # seconds that committed rows of the outbox may wait; they are published every second
KEYS = env_name("encryption_keys")

ROLES = """
    SELECT wanted.right, wanted.role, role.oid IS NOT NULL,
           coalesce(has_schema_privilege(role.oid, 'skep', 'USAGE'), false) AND EXISTS (
               SELECT FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = wanted.function
                  AND has_function_privilege(role.oid, p.oid, 'EXECUTE')),
           has_schema_privilege('skep', 'USAGE') AND EXISTS (
               SELECT FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = wanted.function
                  AND has_function_privilege(p.oid, 'EXECUTE'))
    FROM (VALUES (1, 'push', 'skep_producer', 'push'), (2, 'pop', 'skep_consumer', 'pop'),
                 (3, 'administer', 'skep_admin', 'queue_status')) AS wanted (n, "right", role, function)
    LEFT JOIN pg_roles role ON role.rolname = wanted.role
    ORDER BY wanted.n
"""
# By their indexes: the last sample, and the oldest row of the journal of each queue.
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


def schema(patient: Patient) -> Finding:
    try:
        verify(patient.connection)
    except SkepError as error:
        return fail(error.message, error.hint or "run `skep install`")
    return ok(f"version {packaged().version}, that of this package")


def roles(patient: Patient) -> Finding:
    """A dump has no roles, and a restore without them loses their grants."""
    found = patient.rows(ROLES)
    if lacking := [role for _, role, exists, granted, _ in found if exists and not granted]:
        return fail(f"{', '.join(lacking)} may not use the schema", "run `skep install --again`, which grants it again")
    (user,) = patient.row("SELECT current_user")
    may = [right for right, _, _, _, mine in found if mine]
    if not may:
        return fail(one_line(f"{user} may do nothing"), one_line(f"GRANT skep_producer, skep_consumer TO {user}"))
    rights = f"{user} may {', '.join(may)}"
    if missing := [role for _, role, exists, _, _ in found if not exists]:
        advice = "let a user with CREATEROLE create them and run `skep install --again`, or grant single functions"
        return warn(one_line(f"{rights}; {', '.join(missing)} do not exist"), advice)
    return ok(one_line(rights))


def upkeep(patient: Patient) -> Finding:
    used, sampled, journal = patient.row(UPKEEP)
    if not used:
        return ok("there is nothing to look after yet")
    advice = "run `skep serve` or `skep upkeep`: without them nothing is deleted, and no group is declared dead"
    if sampled is None or sampled > SILENT:
        return warn("no upkeep has ever run" if sampled is None else f"the last sample is {span(sampled)} old", advice)
    if journal is not None and journal > FORGOTTEN:
        advice = "an open transaction keeps it (see above), or the pruner fails: `skep upkeep --once` tells"
        return warn(f"the journal is {span(journal)} old, and should not be older than 10 min", advice)
    return ok(f"the last sample is {span(sampled)} old")


def outbox(patient: Patient) -> Finding:
    """Upkeep publishes rows of strict transactions every second: rows that are still there after a moment are stuck."""
    (before,) = patient.row(OUTBOX)
    if before:
        time.sleep(WAITING)
    (waiting,) = patient.row(OUTBOX)
    if not (before and waiting):
        return ok("nothing waits to be published")
    advice = (
        "run `skep serve` or `skep upkeep`; if one runs, a partition is locked (see transactions), or a queue refuses"
    )
    return warn(f"{waiting:,} committed rows wait to be published", advice)


def log(patient: Patient) -> Finding:
    """Read everything."""
    broken = [f"{invariant}: {number:,} times not" for invariant, number in patient.rows(CONSISTENCY) if number]
    if broken:
        advice = "stop the consumers and SELECT skep.resync_partition_lookup(); if that is not enough, restore a backup"
        return fail("; ".join(broken), advice)
    return ok("whole")


def maintenance(patient: Patient) -> Finding:
    push, pop, held, refused = patient.row(MAINTENANCE)
    states = [text for on, text in ((push, "servers hold pushes"), (pop, "servers deliver nothing")) if on]
    if states:
        return warn(f"on: {' and '.join(states)}", "end it: `skep maintenance end`")
    if refused:
        return warn(f"off, but {refused:,} held requests were refused", "SELECT error FROM skep.held_pushes tells why")
    return ok(f"off, {held:,} held messages wait" if held else "off")


def encryption(patient: Patient) -> Finding:
    names = [one_line(name) for (name,) in patient.rows(ENCRYPTED)]
    if not names:
        return ok("no queue is encrypted")
    which = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''} encrypted"  # noqa: PLR2004
    text = os.environ.get(KEYS)
    if not text:
        advice = f"set {KEYS} where `skep serve` runs: without it these queues are shut"
        return warn(f"{which}, and no keys here", advice)
    try:
        from skep.server.work.crypt import Keyring

        Keyring.load(text)
    except ConfigError as error:
        return fail(f"{which}, but {error.message}", error.hint or f"set {KEYS}")
    return ok(f"{which}, and there are keys")
