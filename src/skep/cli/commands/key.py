"""`skep key`: its commands."""

from typing import Annotated

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Yes, choose
from skep.config import Config

key_app = typer.Typer(help="API keys of the server.", no_args_is_help=True)


@key_app.command("create")
def key_create(
    name: Annotated[str, typer.Argument(help="Whose it is; written to what is pushed with it.", show_default=False)],
    role: Annotated[
        str | None,
        typer.Option(
            metavar="admin|read-write|read-only|write-only",
            help="On every queue.",
            autocompletion=choose("admin", "read-write", "read-only", "write-only"),
            show_default=False,
        ),
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN:ACTION,…",
            help="On the queues that match, instead of the role: 'orders.*:push,pop,ack'; may be repeated.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="After so long: 12h, 90d.", show_default=False)
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a key and show it, this once."""
    from skep.cli.key import create, parse_grants

    config = Config.load_client(database_url, data_dir)
    create(config, name, role, parse_grants(grant), expires, as_json=as_json)


@key_app.command("list")
def key_list(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """List the keys, the newest first."""
    from skep.cli.key import list_keys

    list_keys(Config.load_client(database_url, data_dir), as_json=as_json)


@key_app.command("revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `skep key list` shows it.", show_default=False)],
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Revoke a key for good; within five seconds no server takes it."""
    from skep.cli.key import revoke

    revoke(Config.load_client(database_url, data_dir), key_id, yes=yes, as_json=as_json)
