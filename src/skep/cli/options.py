"""Arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.config import flag_name, help_text


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    from skep.cli.name_completion import QUEUES, find_names

    return find_names(ctx, QUEUES, incomplete)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    from skep.cli.name_completion import GROUPS, find_names

    return find_names(ctx, GROUPS, incomplete)


def choose(*words: str) -> Callable[[str], list[str]]:
    """Return a function that completes one of these words."""
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
OptionalQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUEUE]",
        help="The name of the queue. Default: all queues.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]
Group = Annotated[str, typer.Argument(help="The name of the group.", autocompletion=complete_group, show_default=False)]
Partition = Annotated[str | None, typer.Option(help="Only this partition of the queue.", show_default=False)]
QueueFilter = Annotated[
    str | None, typer.Option("--queue", help="Only this queue.", autocompletion=complete_queue, show_default=False)
]
GroupFilter = Annotated[
    str | None, typer.Option("--group", help="Only this group.", autocompletion=complete_group, show_default=False)
]
Namespace = Annotated[
    str | None, typer.Option(help="All queues of this namespace, instead of a queue.", show_default=False)
]
Task = Annotated[str | None, typer.Option(help="All queues of this task, instead of a queue.", show_default=False)]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Number of partitions to show. Default: 100 in a table, all in JSON.", show_default=False),
]
MessageLimit = Annotated[int, typer.Option("--limit", min=1, help="Number of messages to show.")]
FirstOffset = Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First offset to show.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="AGE|TIME", help="Not older than this age or time: 30m, 2h, 1d.", show_default=False),
]
Until = Annotated[str | None, typer.Option(metavar="AGE|TIME", help="Older than this age or time.", show_default=False)]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="KEY=VALUE", help="Header of the message. Can be repeated.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
