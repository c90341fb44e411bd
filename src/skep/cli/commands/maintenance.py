"""`skep maintenance`: its commands."""

from typing import Annotated

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json
from skep.config import Config

maintenance_app = typer.Typer(
    help="Let all servers hold pushes or deliver nothing for a while. Clients of the database go on.",
    no_args_is_help=True,
)

Push = Annotated[bool, typer.Option("--push", help="Pushes only.")]
Pop = Annotated[bool, typer.Option("--pop", help="Pops only.")]


@maintenance_app.command("show")
def maintenance_show(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Show whether the servers hold pushes or deliver nothing, and what they hold."""
    from skep.cli.maintenance import show

    show(Config.load_client(database_url, data_dir), as_json=as_json)


@maintenance_app.command("start")
def maintenance_start(
    push: Push = False,
    pop: Pop = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let the servers hold pushes and deliver nothing."""
    from skep.cli.maintenance import switch

    switch(Config.load_client(database_url, data_dir), push=push, pop=pop, on=True, as_json=as_json)


@maintenance_app.command("end")
def maintenance_end(
    push: Push = False,
    pop: Pop = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let the servers go on; what they hold is stored, once and in its order."""
    from skep.cli.maintenance import switch

    switch(Config.load_client(database_url, data_dir), push=push, pop=pop, on=False, as_json=as_json)
