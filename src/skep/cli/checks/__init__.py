"""The checks of `skep doctor`, in the order in which they run. Each returns what it found and what to do."""

from collections.abc import Callable

from skep.cli.checks import connection, disk, schema, settings, vacuum
from skep.cli.checks.result import CheckedDatabase, CheckResult

Check = Callable[[CheckedDatabase], CheckResult]

# For any PostgreSQL database, with or without Skep.
DATABASE_CHECKS: dict[str, Check] = {
    "round trip": connection.round_trip,
    "pooler": connection.pooler,
    "clock": connection.clock,
    "connections": connection.connections,
    "version": settings.version,
    "encoding": settings.encoding,
    "writable": settings.writable,
    "durability": settings.durability,
    "isolation": settings.isolation,
    "timeouts": settings.timeouts,
    "autovacuum": settings.autovacuum,
    "transactions": vacuum.transactions,
    "prepared": vacuum.prepared,
    "slots": vacuum.slots,
    "disk": disk.disk,
}
# For a database whose schema matches this package.
SKEP_CHECKS: dict[str, Check] = {
    "roles": schema.roles,
    "dead rows": vacuum.dead_rows,
    "upkeep": schema.upkeep,
    "outbox": schema.outbox,
    "maintenance": schema.maintenance,
    "encryption": schema.encryption,
}
# These read every message.
THOROUGH_CHECKS: dict[str, Check] = {"log": schema.log}

__all__ = ["DATABASE_CHECKS", "SKEP_CHECKS", "THOROUGH_CHECKS", "Check", "CheckResult", "CheckedDatabase"]
