"""`skep dlq`."""

import pytest

from skep import Skep
from tests.cli.conftest import Cli


@pytest.fixture
def letters(mq: Skep) -> Skep:
    for queue in ("orders", "mail"):
        for number in range(3):
            mq.queue(queue).push({"id": number})
            mq.queue(queue).pop(group="billing").dead_letter(None, f"no {queue}\n[bold]{number}")
    return mq


def test_list(cli: Cli, letters: Skep):
    done = cli("dlq", "list")
    assert (done.code, done.stderr, len(done.lines)) == (0, "", 7)
    assert done.lines[1].startswith("6 ")
    assert "mail/Default #2" in done.lines[1]
    assert r"no mail\n[bold]2" in done.lines[1]
    assert '{"id": 2}' in done.lines[1]


def test_filters(cli: Cli, letters: Skep):
    found = cli("dlq", "list", "--queue", "orders", "--group", "billing", "--limit", "2", "--json").json
    assert [(letter["queue"], letter["payload"]["id"]) for letter in found] == [("orders", 2), ("orders", 1)]
    assert found[0]["error"] == "no orders\n[bold]2"
    assert cli("dlq", "list", "--group", "nobody", "--json").json == []
