"""A consumer process that tests kill. It prints its progress.

consumer.py work URL QUEUE BATCH PAUSE_AFTER    pop, ack one by one; pause after this many
consumer.py transact URL QUEUE OUT              pop, then run one step of a transaction for each line of the input
"""

import json
import sys
import time
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

APPLICATION = "skep test victim"
POP = "SELECT lease::text, id::text, \"offset\" FROM skep.pop(%s, 'g', batch => %s)"


def say(word: object) -> None:
    print(word, flush=True)


def wait_to_be_killed() -> None:
    while True:
        time.sleep(60)


def work(connection: psycopg.Connection, queue: str, batch: str, pause_after: str) -> None:
    messages = connection.execute(POP, [queue, int(batch)]).fetchall()
    say("popped")
    for count, (lease, message, offset) in enumerate(messages):
        if count == int(pause_after):
            break
        connection.execute("SELECT skep.ack(%s, %s)", [lease, message])
        say(offset)
    say("pausing")
    wait_to_be_killed()


def transact(connection: psycopg.Connection, queue: str, out: str) -> None:
    messages = connection.execute(POP, [queue, 3]).fetchall()
    first, second, third = ({"lease": lease, "id": message} for lease, message, _ in messages)
    say(json.dumps(first))
    together = [{"ack": first}, {"push": {"queue": out, "payload": "pushed"}}]
    steps: list[tuple[LiteralString, dict[str, Any]]] = [
        ("BEGIN", {}),
        ("SELECT * FROM skep.transaction(%(operations)s)", {"operations": Jsonb(together)}),
        ("SELECT skep.ack(%(lease)s, %(id)s)", second),
        ("INSERT INTO skep.outbox (queue, payload) VALUES (%(out)s, '\"outbox\"')", {"out": out}),
        ("SELECT skep.dead_letter(%(lease)s, 'bad', %(id)s)", third),
        ("COMMIT", {}),
    ]
    for statement, arguments in steps:
        sys.stdin.readline()
        connection.execute(statement, arguments)
        say(statement)
    wait_to_be_killed()


if __name__ == "__main__":
    job, url, *arguments = sys.argv[1:]
    with psycopg.connect(url, autocommit=True, application_name=APPLICATION) as session:
        {"work": work, "transact": transact}[job](session, *arguments)
