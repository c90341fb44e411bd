"""The options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from skep.config import flag_name, help_text


def _setting(name: str) -> Any:  # noqa: ANN401
    return typer.Option(flag_name(name), help=help_text(name), show_default=False)


DatabaseUrl = Annotated[str | None, _setting("database_url")]
DataDir = Annotated[Path | None, _setting("data_dir")]

Queue = Annotated[str, typer.Argument(help="The name of the queue.", show_default=False)]
Group = Annotated[str, typer.Argument(help="The name of the group.", show_default=False)]
Partition = Annotated[str | None, typer.Option(help="One partition of the queue.", show_default=False)]
OfQueue = Annotated[str | None, typer.Option("--queue", help="Of this queue only.", show_default=False)]
OfGroup = Annotated[str | None, typer.Option("--group", help="Of this group only.", show_default=False)]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many partitions to show; without it 100 in a table, all in JSON.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per message and line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
