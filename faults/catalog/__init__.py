"""All faults, by what they harm."""

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
