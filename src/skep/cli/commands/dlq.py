"""`skep dlq`: its commands."""

from typing import Annotated

import typer

from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    DryRun,
    Ids,
    Json,
    LikeError,
    Most,
    OfGroup,
    OfQueue,
    Since,
    Until,
    Yes,
    complete_queue,
)
from skep.config import Config

dlq_app = typer.Typer(help="Dead letters: what groups have given up.", no_args_is_help=True)


@dlq_app.command("list")
def dlq_list(
    queue: OfQueue = None,
    group: OfGroup = None,
    error: LikeError = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List dead letters, the newest first."""
    from skep.cli.dlq import Filter, list_dead_letters

    config = Config.load_client(database_url, data_dir)
    list_dead_letters(config, Filter.of(queue, group, error, since, until), limit=limit, as_json=as_json)


@dlq_app.command("count")
def dlq_count(
    queue: OfQueue = None,
    group: OfGroup = None,
    since: Since = None,
    until: Until = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Count dead letters by their error, most first."""
    from skep.cli.dlq import Filter, count

    count(
        Config.load_client(database_url, data_dir),
        Filter.of(queue, group, None, since, until),
        as_json=as_json,
    )


@dlq_app.command("redrive")
def dlq_redrive(
    queue: OfQueue = None,
    group: OfGroup = None,
    error: LikeError = None,
    since: Since = None,
    until: Until = None,
    ids: Ids = None,
    to_queue: Annotated[
        str | None,
        typer.Option(
            help="As new messages to this queue, not to their group alone.",
            autocompletion=complete_queue,
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="So many in a second at most.", show_default=False)
    ] = None,
    limit: Most = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push dead letters again, the oldest first: to the group that gave them up, or to a queue."""
    from skep.cli.dlq import Drive, Filter, redrive

    config = Config.load_client(database_url, data_dir)
    wanted, drive = Filter.of(queue, group, error, since, until, ids), Drive(to_queue, limit, rate)
    redrive(config, wanted, drive, dry_run=dry_run, yes=yes, as_json=as_json)


@dlq_app.command("purge")
def dlq_purge(
    queue: OfQueue = None,
    group: OfGroup = None,
    error: LikeError = None,
    since: Since = None,
    until: Until = None,
    ids: Ids = None,
    limit: Most = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete dead letters, the oldest first."""
    from skep.cli.dlq import Filter, purge

    config = Config.load_client(database_url, data_dir)
    purge(config, Filter.of(queue, group, error, since, until, ids), limit, dry_run=dry_run, yes=yes, as_json=as_json)


@dlq_app.command("audit")
def dlq_audit(
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show who drove or purged which dead letters."""
    from skep.cli.dlq import audit

    audit(Config.load_client(database_url, data_dir), limit=limit, as_json=as_json)
