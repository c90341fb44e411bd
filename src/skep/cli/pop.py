"""`skep pop`: take messages off a queue; they are done once they are printed."""

from collections.abc import Iterable

from skep.cli.connect import connect
from skep.cli.report import errors
from skep.cli.show import age, as_dict, compact, message_line, say
from skep.config import Config
from skep.message import Message
from skep.scope import Scope

MOST_PARTITIONS = 10_000


def run(config: Config, scope: Scope, *, batch: int, wait: float, ack: bool, as_json: bool) -> None:
    with connect(config) as mq:
        popped = mq.pop(
            scope.queue,
            group=scope.group,
            batch=batch,
            wait=wait,
            partition=scope.partition,
            namespace=scope.namespace,
            task=scope.task,
            partitions=min(batch, MOST_PARTITIONS),
        )
        try:
            _show(popped, as_json=as_json)
        except BaseException:  # nobody has seen them
            popped.release()
            raise
        if not popped:
            _say_nothing(wait)
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
    until = f"{message.lease_expires_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"leased until {until}; acknowledge with: SELECT skep.ack('{message.lease}')"


def _say_nothing(wait: float) -> None:
    errors.print(f"no messages in {wait:g} s" if wait > 0 else "no messages", style="dim")
