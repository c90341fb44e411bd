"""`skep pipeline`: its commands."""

from typing import Annotated

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Namespace, Task
from skep.config import Config

pipeline_app = typer.Typer(help="Jobs on Spark: archive a log, import files, replay.", no_args_is_help=True)

Queues = Annotated[list[str] | None, typer.Argument(metavar="[QUEUE]...", help="The queues.", show_default=False)]
Pattern = Annotated[
    str | None, typer.Option(help="Instead of queues: all whose name matches this expression.", show_default=False)
]
Location = Annotated[
    str, typer.Option("--archive", metavar="PATH|URI", help="Where the archive is.", show_default=False)
]
Master = Annotated[str, typer.Option(help="The Spark to run on; local[*] is this machine.")]


@pipeline_app.command("archive")
def pipeline_archive(
    location: Location,
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    file_messages: Annotated[int, typer.Option(min=1, help="At most so many messages in a file.")] = 1_000_000,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Store the messages of queues as Parquet, each once; run it as often as you like."""
    from skep.cli.pipeline import archive, select

    config = Config.load_client(database_url, data_dir)
    selection = select(queues, pattern, namespace, task)
    archive(config, location, selection, file_messages=file_messages, master=master, as_json=as_json)
