"""`skep schedule`."""

import psycopg
import pytest

from skep import Skep
from tests.cli.conftest import Cli

NIGHTLY = ("schedule", "set", "nightly", "0 2 * * *", "reports", '{"kind": "sales"}', "--time-zone", "Europe/Berlin")


def test_set_and_list(cli: Cli, mq: Skep):
    done = cli(*NIGHTLY, "--partition", "eu", "--header", "a=b", "--missed", "all")
    (made,) = mq.schedules()
    assert done.lines == [f"nightly: next message to reports at {made.next_at.astimezone():%Y-%m-%d %H:%M:%S}"]
    assert (made.partition, made.headers, made.missed, made.payload) == ("eu", {"a": "b"}, "all", {"kind": "sales"})
    header, row = cli("schedule", "list").lines
    assert header.split()[:2] == ["schedule", "cron"]
    assert (row.split()[0], row.split()[-1]) == ("nightly", "active")
    assert [schedule["name"] for schedule in cli("schedule", "list", "reports", "--json").json] == ["nightly"]
    assert cli("schedule", "list", "other", "--json").json == []


def test_pause_resume_delete(cli: Cli):
    cli(*NIGHTLY)
    assert cli("schedule", "pause", "nightly").lines == ["nightly is paused"]
    assert cli("schedule", "list").lines[1].split()[-1] == "paused"
    assert cli("schedule", "resume", "nightly", "--json").json["paused"] is False
    assert cli("schedule", "delete", "nightly").lines == ["nightly deleted"]
    again = cli("schedule", "delete", "nightly")
    assert (again.code, 'there is no schedule "nightly"' in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["0 25 * * *", "reports"], "hour must be numbers from 0 to 23"),
        (["@daily", "reports", "{"], "the payload is not JSON"),
        (["@daily", "reports", "1", "--time-zone", "Mars"], 'unknown time zone "Mars"'),
    ],
)
def test_invalid_arguments(cli: Cli, arguments: list[str], words: str):
    done = cli("schedule", "set", "s", *arguments)
    assert (done.code, words in done.stderr) == (1, True), done.stderr


def test_a_refused_tick_is_shown(cli: Cli, mq: Skep, database_url: str):
    mq.queue("reports").configure(semantics="pub_sub", block_without_subscribers=True)
    cli(*NIGHTLY)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE skep.schedules SET next_at = now()")
    assert cli("upkeep", "--once").code == 0
    assert 'refused: queue "reports" takes no messages' in cli("schedule", "list").lines[1]
