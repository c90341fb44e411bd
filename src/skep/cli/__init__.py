"""The command line: the only part of Skep that prints, exits and handles signals.

Each module holds its commands with their bodies. Slow imports are inside the functions, so that `--help` and shell
completion start fast.
"""

import os
import sys
from typing import Annotated

import typer

import skep
from skep.cli import (
    bench,
    completion,
    demo,
    doctor,
    history,
    install,
    pop,
    push,
    retention,
    serve,
    subscription,
    tail,
    top,
    upkeep,
)
from skep.cli.dead_letter import dead_letter_app
from skep.cli.delayed import delayed_app
from skep.cli.examples import add_examples
from skep.cli.group import group_app
from skep.cli.key import key_app
from skep.cli.maintenance import maintenance_app
from skep.cli.message import message_app
from skep.cli.pipeline import pipeline_app
from skep.cli.queue import queue_app
from skep.cli.schedule import schedule_app

app = typer.Typer(
    help="A partitioned message queue and pub/sub log inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line. An error is printed as one line and a hint; SKEP_DEBUG=1 shows the traceback."""
    try:
        completion.register_shells()
        app()
    except Exception as error:
        if os.environ.get("SKEP_DEBUG"):
            raise
        from skep.cli.report import show_error

        show_error(error)
        sys.exit(1)


def _show_version(show: bool) -> None:
    if show:
        print(f"skep {skep.__version__}")
        raise typer.Exit


@app.callback()
def _skep(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


app.command()(serve.serve)
app.command()(install.install)
app.command()(install.uninstall)
app.command()(push.push)
app.command()(pop.pop)
app.command()(tail.tail)
app.command()(top.top)
app.command()(doctor.doctor)
app.command()(demo.demo)
app.command()(bench.bench)
app.command()(completion.completion)
app.command()(upkeep.upkeep)

queue_app.command("retention")(retention.queue_retention)
queue_app.command("history")(history.queue_history)
group_app.command("subscribe")(subscription.subscribe)
group_app.command("configure")(subscription.configure)
group_app.command("pause")(subscription.pause)
group_app.command("resume")(subscription.resume)
group_app.command("heartbeat")(subscription.heartbeat)
group_app.command("cancel")(subscription.cancel)
group_app.command("remove")(subscription.remove)
group_app.command("force-complete")(subscription.force_complete)

app.add_typer(queue_app, name="queue")
app.add_typer(message_app, name="message")
app.add_typer(group_app, name="group")
app.add_typer(dead_letter_app, name="dead-letter")
app.add_typer(dead_letter_app, name="dlq", hidden=True)
app.add_typer(delayed_app, name="delayed")
app.add_typer(schedule_app, name="schedule")
app.add_typer(key_app, name="key")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(maintenance_app, name="maintenance")

add_examples(app)
