"""All faults, by what they harm."""

from faults.catalog import database, network, processes
from faults.catalog.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "database", "network", "processes"]
