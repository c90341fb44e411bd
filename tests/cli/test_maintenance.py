"""`skep maintenance`: the maintenance mode of the servers."""

from collections.abc import Callable

import psycopg

from skep import Skep
from tests.cli.conftest import Cli

HOLD = """SELECT skep._hold_push('[{"queue": "orders", "partition": "p", "payload": 1, "payload_text": "1"}]')"""


def test_start_and_end(cli: Cli):
    assert cli("maintenance", "show").stdout == "servers store pushes and deliver\n"
    assert cli("maintenance", "start").stdout == "servers hold pushes and deliver nothing\n"
    assert cli("maintenance", "end", "--pop").stdout == "servers hold pushes and deliver\n"
    assert cli("maintenance", "end").stdout == "servers store pushes and deliver\n"
    status = cli("maintenance", "start", "--push", "--json").json
    assert (status["push"], status["pop"], status["held"]) == (True, False, 0)


def test_held_messages_are_stored_at_the_end(cli: Cli, mq: Skep, connect: Callable[..., psycopg.Connection]):
    cli("maintenance", "start", "--push")
    assert connect().execute(HOLD).fetchone() == (True,)
    assert cli("maintenance", "show").stdout == "servers hold pushes and deliver; 1 message held\n"
    assert cli("maintenance", "end").stdout == "servers store pushes and deliver\n"
    assert [message.payload for message in mq.peek("orders")] == [1]
