"""The options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.config import flag_name, help_text


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    from skep.cli.names import QUEUES, find

    return find(ctx, QUEUES, incomplete)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    from skep.cli.names import GROUPS, find

    return find(ctx, GROUPS, incomplete)


def choose(*words: str) -> Callable[[str], list[str]]:
    """Complete one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _setting(name: str) -> Any:  # noqa: ANN401
    return typer.Option(flag_name(name), help=help_text(name), show_default=False)


DatabaseUrl = Annotated[str | None, _setting("database_url")]
DataDir = Annotated[Path | None, _setting("data_dir")]
LeaseExpiryInterval = Annotated[float | None, _setting("lease_expiry_interval")]
DetectionInterval = Annotated[float | None, _setting("detection_interval")]
RetentionInterval = Annotated[float | None, _setting("retention_interval")]
SamplingInterval = Annotated[float | None, _setting("sampling_interval")]
PruningInterval = Annotated[float | None, _setting("pruning_interval")]
HeldPushInterval = Annotated[float | None, _setting("held_push_interval")]
OutboxInterval = Annotated[float | None, _setting("outbox_interval")]
DelayedInterval = Annotated[float | None, _setting("delayed_interval")]
ScheduleInterval = Annotated[float | None, _setting("schedule_interval")]
Host = Annotated[str | None, _setting("host")]
Port = Annotated[int | None, _setting("port")]
Workers = Annotated[int | None, _setting("workers")]
Auth = Annotated[bool | None, typer.Option("--auth/--no-auth", help=help_text("auth"), show_default=False)]
TlsCert = Annotated[Path | None, _setting("tls_cert")]
TlsKey = Annotated[Path | None, _setting("tls_key")]
LogFormat = Annotated[str | None, _setting("log_format")]
LogLevel = Annotated[str | None, _setting("log_level")]

Queue = Annotated[str, typer.Argument(help="The name of the queue.", autocompletion=complete_queue, show_default=False)]
Group = Annotated[str, typer.Argument(help="The name of the group.", autocompletion=complete_group, show_default=False)]
Partition = Annotated[str | None, typer.Option(help="One partition of the queue.", show_default=False)]
OfQueue = Annotated[
    str | None, typer.Option("--queue", help="Of this queue only.", autocompletion=complete_queue, show_default=False)
]
OfGroup = Annotated[
    str | None, typer.Option("--group", help="Of this group only.", autocompletion=complete_group, show_default=False)
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many partitions to show; without it 100 in a table, all in JSON.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per message and line.")]
SomeQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUEUE]",
        help="The name of the queue; without it, all.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]
RetryLimit = Annotated[
    int | None,
    typer.Option(min=0, help="How often a failed message is retried; else the queue's option.", show_default=False),
]
RetryDelay = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The wait before the first retry; it doubles each time.", show_default=False),
]
MaxRetryDelay = Annotated[
    str | None, typer.Option(metavar="TIME", help="The longest wait before a retry.", show_default=False)
]
RetryJitter = Annotated[
    float | None, typer.Option(min=0, max=1, help="The share of the wait by which it varies.", show_default=False)
]
Namespace = Annotated[str | None, typer.Option(help="Instead of a queue: all of this namespace.", show_default=False)]
Task = Annotated[str | None, typer.Option(help="Instead of a queue: all of this task.", show_default=False)]
LikeError = Annotated[
    str | None, typer.Option("--error", help="With this in the text of the error.", show_default=False)
]
Since = Annotated[
    str | None, typer.Option(metavar="AGE|TIME", help="Not older: 30m, 2h, 1d, or a time.", show_default=False)
]
Until = Annotated[str | None, typer.Option(metavar="AGE|TIME", help="Older than this.", show_default=False)]
Ids = Annotated[list[int] | None, typer.Option("--id", help="This one; may be repeated.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Most = Annotated[
    int | None, typer.Option("--limit", min=1, help="So many at most, the oldest first.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
