"""What `skep doctor` looks at, in this order: each check is a function that says what it found and what to do."""

from collections.abc import Callable

from skep.cli.checks import horizon, line, machine, schema, settings
from skep.cli.checks.finding import Finding, Patient

Check = Callable[[Patient], Finding]

# Of any PostgreSQL, with Skep in it or not.
OF_DATABASE: dict[str, Check] = {
    "round trip": line.round_trip,
    "pooler": line.pooler,
    "clock": line.clock,
    "connections": line.connections,
    "version": settings.version,
    "encoding": settings.encoding,
    "writable": settings.writable,
    "durability": settings.durability,
    "isolation": settings.isolation,
    "timeouts": settings.timeouts,
    "autovacuum": settings.autovacuum,
    "transactions": horizon.transactions,
    "prepared": horizon.prepared,
    "slots": horizon.slots,
    "disk": machine.disk,
}
# Of a database whose schema is the one of this package.
OF_SKEP: dict[str, Check] = {
    "roles": schema.roles,
    "dead rows": horizon.dead_rows,
    "upkeep": schema.upkeep,
    "outbox": schema.outbox,
    "maintenance": schema.maintenance,
    "encryption": schema.encryption,
}
# What reads every message.
THOROUGH: dict[str, Check] = {"log": schema.log}

__all__ = ["OF_DATABASE", "OF_SKEP", "THOROUGH", "Check", "Finding", "Patient"]
