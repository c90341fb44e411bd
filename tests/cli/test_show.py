"""How values are printed."""

import os
import pty
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from skep import Skep
from skep.cli.chart import bar, buckets, sparkline
from skep.cli.show import age, counted, one_line, show_table
from skep.cli.times import parse_duration, parse_time
from skep.errors import InvalidArgument
from tests.cli.process import SKEP, environment, read_terminal


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d"), (10**8, "1,157 d")],
)
def test_age(seconds: int, shown: str):
    assert age(datetime.now(UTC) - timedelta(seconds=seconds)) == shown


def test_counted():
    assert [counted(number, "message") for number in (0, 1, 1234)] == ["0 messages", "1 message", "1,234 messages"]


def test_one_line():
    assert one_line("plain ü 漢字") == "plain ü 漢字"
    assert one_line("a\nb\tc\x1b[31m\x9b\u202e") == r"a\nb\tc\x1b[31m\x9b\u202e"


def test_a_table_in_a_pipe_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]):
    show_table(("name", "size"), [("x" * 5000, 1234567), ("two\nlines", None)])
    header, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["x" * 5000, "1,234,567"]
    assert second.split() == [r"two\nlines", "-"]
    assert header.split() == ["name", "size"]


def test_a_table_on_a_narrow_terminal_wraps_and_loses_nothing(database_url: str, mq: Skep):
    name = "".join(f"{number:03}" for number in range(80))
    mq.queue("orders").push(1, partition=name)
    controller, terminal = pty.openpty()
    command = [SKEP, "queue", "show", "orders", "--database-url", database_url]
    subprocess.run(command, env=environment(TERM="dumb"), stdout=terminal, check=True, timeout=60)
    os.close(terminal)
    shown = read_terminal(controller)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert name in "".join(line.split()[0] for line in shown.splitlines() if line[:3].isdigit())
    assert "…" not in shown


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0s", 0), ("30m", 1800), ("1.5 h", 5400), ("2D", 172_800), ("1w", 604_800)]
)
def test_lengths_of_time(text: str, seconds: float):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5 years", "1h30m", "9" * 40, "nan", "٣m"])
def test_not_a_duration(text: str):
    with pytest.raises(InvalidArgument):
        parse_duration(text)
    with pytest.raises(InvalidArgument):
        parse_time(text)


def test_times():
    assert parse_time("2026-01-31T12:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_time("2026-01-31 12:00") == datetime(2026, 1, 31, 12).astimezone()
    assert abs((parse_time("1h") or datetime.now(UTC)) - datetime.now(UTC) + timedelta(hours=1)) < timedelta(minutes=1)
    assert parse_time(None) is None


def test_charts():
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█"
    assert (sparkline([]), sparkline([0, 0]), sparkline([5])) == ("", "▁▁", "█")
    assert [bar(value, 80, width=10) for value in (0, 0.001, 1, 44, 80)] == ["", "▏", "▏", "█████▌", "█" * 10]
    assert buckets([1, 3, 5, 7, 9], 3) == [2, 6, 9]
    assert buckets([1, 2], 60) == [1, 2]
