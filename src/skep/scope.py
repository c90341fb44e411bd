"""The scope of a call: the group and the queues or the partition to read."""

from dataclasses import asdict, dataclass
from typing import Any

from skep.message import QUEUE_MODE


@dataclass(frozen=True, slots=True)
class Scope:
    """A queue, one of its partitions, or all queues of a namespace and/or task, for one group, and its start."""

    queue: str | None = None
    group: str = QUEUE_MODE
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    subscription_mode: str | None = None
    subscription_from: str | None = None

    def arguments(
        self, *, batch: int, partitions: int = 1, lease_time: float | None = None, auto_ack: bool = False
    ) -> dict[str, Any]:
        """Return the arguments of `skep.pop`."""
        options = {"batch": batch, "partitions": partitions, "lease_time": lease_time, "auto_ack": auto_ack}
        return asdict(self) | options
