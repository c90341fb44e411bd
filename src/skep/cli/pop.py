"""`skep pop`: pop messages, print them, and ack them."""

from collections.abc import Iterable
from typing import Annotated

import typer

from skep.cli.connect import connect
from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    JsonLines,
    Namespace,
    OptionalQueue,
    Partition,
    Task,
    complete_group,
)
from skep.cli.show import age, as_dict, clock, compact, message_line, note, say
from skep.message import QUEUE_MODE, Message

MAX_PARTITIONS = 10_000


def pop(
    queue: OptionalQueue = None,
    group: Annotated[
        str,
        typer.Option(
            help="Pop for this group. Default: the group shared by all consumers without one.",
            autocompletion=complete_group,
            show_default=False,
        ),
    ] = QUEUE_MODE,
    batch: Annotated[int, typer.Option(help="Maximum number of messages.")] = 1,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first message.")] = 0,
    partition: Partition = None,
    namespace: Namespace = None,
    task: Task = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Ack the messages after printing them.")] = True,
    as_json: JsonLines = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Pop messages and print them."""
    with connect(database_url, data_dir) as mq:
        popped = mq.pop(
            queue,
            group=group,
            batch=batch,
            wait=wait,
            partition=partition,
            namespace=namespace,
            task=task,
            partitions=min(batch, MAX_PARTITIONS),
        )
        try:
            _show(popped, as_json=as_json)
        except BaseException:  # the output was not read
            popped.release()
            raise
        if not popped:
            note(f"no messages in {wait:g} s" if wait > 0 else "no messages")
        elif ack:
            popped.ack()
        elif not as_json:
            say(_lease_line(popped[0]))


def _show(messages: Iterable[Message], *, as_json: bool) -> None:
    for message in messages:
        if as_json:
            print(compact(as_dict(message)), flush=True)
        else:
            say(message_line(message, f"{age(message.created_at)} ago"))


def _lease_line(message: Message) -> str:
    return f"leased until {clock(message.lease_expires_at)}; ack with: SELECT skep.ack('{message.lease}')"
