"""All faults, by the part that they affect."""

from faults.catalog import clock, database, disk, load, locks, network, processes, standby, upgrade
from faults.catalog.fault import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Fault",
    "clock",
    "database",
    "disk",
    "load",
    "locks",
    "network",
    "processes",
    "standby",
    "upgrade",
]
