"""`skep dead-letter`, and its alias `skep dlq`."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from skep import Skep
from tests.cli.conftest import Cli
from tests.cli.process import on_terminal


@pytest.fixture
def letters(mq: Skep) -> Skep:
    for queue in ("orders", "mail"):
        for number in range(3):
            mq.queue(queue).push({"id": number})
            mq.queue(queue).pop(group="billing").dead_letter(None, f"no {queue}\n[bold]{number}")
    return mq


def test_list(cli: Cli, letters: Skep):
    done = cli("dead-letter", "list")
    assert (done.code, done.stderr, len(done.lines)) == (0, "", 7)
    assert done.lines[1].startswith("6 ")
    assert "mail/Default #2" in done.lines[1]
    assert r"no mail\n[bold]2" in done.lines[1]
    assert '{"id": 2}' in done.lines[1]


def test_the_alias(cli: Cli, letters: Skep):
    assert cli("dlq", "list", "--json").json == cli("dead-letter", "list", "--json").json
    assert "dlq" not in cli("--help").stdout


def test_filters(cli: Cli, letters: Skep):
    found = cli("dead-letter", "list", "--queue", "orders", "--group", "billing", "--limit", "2", "--json").json
    assert [(letter["queue"], letter["payload"]["id"]) for letter in found] == [("orders", 2), ("orders", 1)]
    assert found[0]["error"] == "no orders\n[bold]2"
    assert cli("dead-letter", "list", "--group", "unknown", "--json").json == []


def test_filters_of_error_and_time(cli: Cli, letters: Skep):
    def found(*options: str) -> list[int]:
        return [letter["id"] for letter in cli("dead-letter", "list", *options, "--json").json]

    middle = letters.dead_letters()[3].failed_at.isoformat()
    assert found("--error", "NO MAIL") == [6, 5, 4]
    assert found("--since", middle) == [6, 5, 4, 3]
    assert found("--until", middle) == [2, 1]
    assert found("--since", "1h") == [6, 5, 4, 3, 2, 1]
    assert found("--until", "30m") == []
    assert found("--since", f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%MZ}") == []
    assert cli("dead-letter", "list", "--since", "once").stderr.startswith(
        'error: "once" is neither a time nor an age\nhint: '
    )


def test_count(cli: Cli, mq: Skep):
    for error in ["broken pipe", "timeout", "timeout", "timeout", "timeout"]:
        mq.queue("orders").push(1)
        mq.queue("orders").pop(group="billing").dead_letter(None, error)
    most, least = cli("dead-letter", "count").lines[1:]
    assert most.split()[:5] == ["4", "█" * 20, "timeout", "orders", "billing"]
    assert least.split()[:4] == ["1", "█" * 5, "broken", "pipe"]
    counts = cli("dead-letter", "count", "--queue", "orders", "--since", "1h", "--json").json
    assert [(each["error"], each["letters"]) for each in counts] == [("timeout", 4), ("broken pipe", 1)]
    assert cli("dead-letter", "count", "--group", "unknown", "--json").json == []


def test_redrive_to_the_group(cli: Cli, letters: Skep):
    done = cli("dead-letter", "redrive", "--queue", "orders", "--limit", "2")
    assert " ".join(done.lines[1].split()) == "orders billing 2 orders, only for billing"
    assert (done.lines[2], done.stderr) == ("2 dead letters redriven", "")
    assert [letter.id for letter in letters.dead_letters("orders")] == [3]
    assert [message.payload["id"] for message in letters.queue("orders").pop(group="billing", batch=9)] == [0, 1]


def test_redrive_to_a_queue(cli: Cli, letters: Skep):
    command = ["dead-letter", "redrive", "--id", "2", "--id", "5", "--to-queue", "again"]
    would = cli(*command, "--dry-run", "--json").json
    assert (would["redriven"], would["dry_run"]) == (0, True)
    assert [letter["id"] for letter in would["letters"]] == [2, 5]
    assert cli(*command, "--dry-run").lines[-1] == "2 dead letters would be redriven"
    assert len(letters.dead_letters()) == 6
    done = cli(*command, "--json").json
    assert (done["redriven"], [letter["id"] for letter in done["letters"]]) == (2, [2, 5])
    assert letters.queue("again").status().messages == 2
    assert cli(*command).stdout == "0 dead letters redriven\n"


def test_redrive_everything_asks(cli: Cli, letters: Skep):
    done = cli("dead-letter", "redrive", stdin=b"n\n")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("Redrive all 6 dead letters? [y/N] error: nothing was redriven\nhint: ")
    assert cli("dead-letter", "redrive", "--yes").lines[-1] == "6 dead letters redriven"
    assert letters.dead_letters() == []
    assert cli("dead-letter", "redrive").stdout == "0 dead letters redriven\n"


def test_redrive_slowly(cli: Cli, letters: Skep):
    start = time.monotonic()
    assert cli("dead-letter", "redrive", "--rate", "10", "--yes").lines[-1] == "6 dead letters redriven"
    assert time.monotonic() - start >= 0.5


def test_redrive_shows_its_progress_on_a_terminal(database_url: str, letters: Skep):
    shown = on_terminal("dead-letter", "redrive", "--error", "no", "--rate", "4", "--database-url", database_url)
    assert "redriving" in shown
    assert "4/6" in shown
    assert "6 dead letters redriven" in shown


def test_dead_letters_redriven_before_an_error_are_shown(cli: Cli, letters: Skep, monkeypatch: pytest.MonkeyPatch):
    first, redrive = [], Skep.redrive

    def fail_later(*arguments, **options):
        if first:
            raise KeyboardInterrupt
        first.append(1)
        return redrive(*arguments, **options)

    monkeypatch.setattr(Skep, "redrive", fail_later)
    done = cli("dead-letter", "redrive", "--yes", "--rate", "4")
    assert (done.code != 0, done.lines[-1]) == (True, "2 dead letters redriven")
    assert len(letters.dead_letters()) == 4


def test_purge(cli: Cli, letters: Skep):
    assert cli("dead-letter", "purge", "--queue", "mail", "--dry-run").stdout == "3 dead letters would be purged\n"
    done = cli("dead-letter", "purge", "--queue", "mail", stdin=b"n\n")
    assert done.stderr.startswith("Purge the selected 3 dead letters? [y/N] error: nothing was purged\n")
    assert cli("dead-letter", "purge", "--queue", "mail", "--limit", "2", "--yes").stdout == "2 dead letters purged\n"
    assert [letter.id for letter in letters.dead_letters()] == [6, 3, 2, 1]
    done = cli("dead-letter", "purge", "--json", stdin=b"y\n")
    assert done.json == {"purged": 4, "dry_run": False, "matching": 4}
    assert done.stderr == "Purge all 4 dead letters? [y/N] "
    assert letters.dead_letters() == []


def test_audit(cli: Cli, letters: Skep):
    cli("dead-letter", "redrive", "--id", "1", "--to-queue", "again")
    cli("dead-letter", "purge", "--id", "6", "--yes")
    purged, redriven = (line.split() for line in cli("dead-letter", "audit").lines[1:])
    assert purged[3] == "purged"
    assert purged[5:10] == ["6", "billing", "mail/Default", "#2", "-"]
    assert redriven[5:10] == ["1", "billing", "orders/Default", "#0", "again"]
    found = cli("dead-letter", "audit", "--json", "--limit", "1").json
    assert [(each["action"], each["dead_letter_id"], each["to_queue"]) for each in found] == [("purged", 6, None)]
