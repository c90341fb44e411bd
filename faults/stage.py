"""Stages: the kinds of worlds in which rounds run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from faults.state import CROWD, MANY, Queue, Setup

QUEUES = (
    Queue("orders", ("http", "client", "transform", "handlers"), ("auto",), options={"completed_retention_seconds": 1}),
    Queue("shared", ("crowd",), concurrency=4),
    Queue("limited", ("limited",), options={"max_size": 10}),
    Queue("derived"),
    Queue("poison", ("patient",), retry_limit=2, lease_time=1),
    Queue(CROWD, (MANY,), lease_time=15),
)
GROUPS = {  # the groups of each kind of consumer
    "pop-http": {"http"},
    "pop-client": {"client", "crowd", "limited"},
    "pop-transform": {"transform"},
    "pop-auto": {"handlers", "auto"},
    "pop-poison": {"patient"},
    "pop-many": {MANY},
}
CREW = {
    "push-http": 1,
    "push-client": 1,
    "push-outbox": 1,
    "pop-http": 2,
    "pop-client": 2,
    "pop-transform": 2,
    "pop-auto": 1,
    "pop-poison": 2,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The processes of a world, and the configuration of its database."""

    crew: Mapping[str, int] = field(default_factory=lambda: CREW)
    servers: int = 2
    clients: Mapping[str, Any] = field(default_factory=dict[str, Any])  # settings that differ from the default
    build: str = ""  # broken on purpose, see faults.broken
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # of PostgreSQL
    standby: Literal["", "synchronous", "asynchronous"] = ""
    pooled: bool = False  # PgBouncer in transaction mode before the database
    clocks: bool = False  # the database, the servers and the consumers have separate clocks
    disk_mb: int = 0  # size of the file system of the database, if it is limited
    note: str = ""  # added to the titles of faults, if a fault is in several stages
    always: tuple[str, ...] = ()  # faults that begin every round
    loses: float = 0  # seconds before a crash whose pushes a setting may lose

    def setup(self) -> Setup:
        """Return the queues, with the groups that have a consumer."""
        served = {group for kind in self.crew for group in GROUPS.get(kind, ())}
        queues = (
            replace(
                queue,
                groups=tuple(group for group in queue.groups if group in served),
                auto_groups=tuple(group for group in queue.auto_groups if group in served),
            )
            for queue in QUEUES
        )
        return Setup(tuple(queues), self.clocks, self.loses)


STAGES = {
    "plain": Stage(),
    "pooled": Stage(pooled=True),
    "standby": Stage(standby="synchronous"),
    "clock": Stage(clocks=True),
    "disk": Stage(disk_mb=256, settings={"max_wal_size": "'64MB'", "min_wal_size": "'8MB'"}),
    "upgrade": Stage(),
    "crowd": Stage(CREW | {"pop-many": 2}, always=("crowd",)),
    "forgetful": Stage(settings={"synchronous_commit": "off"}, loses=1, note="synchronous_commit = off"),
    "lagging": Stage(standby="asynchronous", loses=4),
}
