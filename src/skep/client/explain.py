"""The result of `explain_start`."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StartExplanation:
    """Why a group starts at an offset of a partition: the subscription that applies, and the resulting offset.

    `scope` is partition, queue, namespace, task, or namespace and task; None if no subscription applies. `start_offset`
    is None if the partition does not exist. `has_started` is true once the group has read from the partition.
    """

    subscription_id: int | None
    scope: str | None
    mode: str | None
    start_at: datetime | None
    asked_offset: int | None
    subscribed_at: datetime | None
    start_offset: int | None
    has_started: bool
