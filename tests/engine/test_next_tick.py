"""When a cron expression fires: fields, names, days that never come, and clocks that change."""

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pytest

from tests.engine.verbs import refused

NEXT = "SELECT skep._next_tick(%s, %s, %s)"
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def next_tick(connection: psycopg.Connection, cron: str, after: datetime, zone: str = "UTC") -> datetime:
    return connection.execute(NEXT, [cron, zone, after]).fetchall()[0][0].astimezone(UTC)


def ticks(
    connection: psycopg.Connection, cron: str, start: datetime, end: datetime, zone: str = "UTC"
) -> list[datetime]:
    """Return the ticks after start, up to end."""
    found: list[datetime] = []
    while (start := next_tick(connection, cron, start, zone)) <= end:
        found.append(start)
    return found


@pytest.mark.parametrize(
    ("cron", "after", "tick"),
    [
        ("* * * * *", "2026-01-31 12:00:00", "2026-01-31 12:01:00"),
        ("* * * * *", "2026-01-31 12:00:59.999999", "2026-01-31 12:01:00"),
        ("*/15 * * * *", "2026-01-31 12:15:00", "2026-01-31 12:30:00"),
        ("*/15 * * * *", "2026-01-31 12:50", "2026-01-31 13:00"),
        ("*/7 * * * *", "2026-01-31 12:56", "2026-01-31 13:00"),
        ("5-20/5 * * * *", "2026-01-31 12:20", "2026-01-31 13:05"),
        ("50/4 * * * *", "2026-01-31 12:54", "2026-01-31 12:58"),
        ("0,30 9-17 * * *", "2026-01-31 17:30", "2026-02-01 09:00"),
        ("0 9 * * mon-fri", "2026-01-30 09:00", "2026-02-02 09:00"),
        ("0 9 * * MON,Wed", "2026-02-02 09:00", "2026-02-04 09:00"),
        ("0 0 * * 0", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("0 0 * * 7", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("0 0 * * fri-sun", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("0 0 1 jan *", "2026-01-01 00:00", "2027-01-01 00:00"),
        ("0 0 1 */3 *", "2026-01-02 00:00", "2026-04-01 00:00"),
        ("0 0 31 * *", "2026-03-31 00:00", "2026-05-31 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-02-29 00:00", "2104-02-29 00:00"),
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59"),
        # Both days restricted: one of them is enough. With a star only the other counts.
        ("0 0 13 * fri", "2026-02-01 00:00", "2026-02-06 00:00"),
        ("0 0 13 * fri", "2026-02-06 00:00", "2026-02-13 00:00"),
        ("0 0 14 * fri", "2026-02-13 00:00", "2026-02-14 00:00"),
        ("0 0 */2 * mon", "2026-02-01 00:00", "2026-02-09 00:00"),
        ("0 0 * * mon", "2026-02-01 00:00", "2026-02-02 00:00"),
        ("@hourly", "2026-01-31 12:00", "2026-01-31 13:00"),
        ("@daily", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("@midnight", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("@weekly", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("@monthly", "2026-01-31 12:00", "2026-02-01 00:00"),
        ("@yearly", "2026-01-31 12:00", "2027-01-01 00:00"),
        ("@Annually", "2026-01-31 12:00", "2027-01-01 00:00"),
        ("  0   0\t1 1   * ", "2026-01-31 12:00", "2027-01-01 00:00"),
    ],
)
def test_next(conn: psycopg.Connection, cron: str, after: str, tick: str):
    assert next_tick(conn, cron, at(after)) == at(tick)


@pytest.mark.parametrize(
    ("zone", "cron", "start", "expected"),
    [
        # 02:00 to 03:00 does not exist: 02:30 fires when the gap ends, once.
        (BERLIN, "30 2 * * *", "2026-03-27 12:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        (BERLIN, "*/20 2 * * *", "2026-03-29 00:00", ["03-29 01:00", "03-30 00:00", "03-30 00:20"]),
        (BERLIN, "0 2,3 * * *", "2026-03-29 00:00", ["03-29 01:00", "03-30 00:00", "03-30 01:00"]),
        (BERLIN, "30 * * * *", "2026-03-29 00:00", ["03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:30"]),
        (NEW_YORK, "30 2 * * *", "2026-03-07 12:00", ["03-08 07:00", "03-09 06:30"]),
        # 02:00 to 03:00 exists twice: 02:30 fires the first time only.
        (BERLIN, "30 2 * * *", "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"]),
        (BERLIN, "30 1-3 * * *", "2026-10-24 23:00", ["10-24 23:30", "10-25 00:30", "10-25 02:30", "10-26 00:30"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31 12:00", ["11-01 05:30", "11-02 06:30"]),
        (NEW_YORK, "0 0 * * *", "2026-10-31 12:00", ["11-01 04:00", "11-02 05:00"]),
        # Half an hour, and a day that was left out.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-02 12:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]),
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-01 00:00", ["12-30 10:00"]),
    ],
)
def test_clocks_that_change(conn: psycopg.Connection, zone: str, cron: str, start: str, expected: list[str]):
    last = at(start)
    for text in expected:
        last = next_tick(conn, cron, last, zone)
        assert f"{last:%m-%d %H:%M}" == text


CRONS = ["* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "15,45 1-3 * * *", "0 0 * * *", "*/20 2 * * sun"]


def reference(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Look at every minute: local times that match, the first time they exist; and those in a gap, at its end."""
    minutes, hours, *_, weekdays = (_values(field) for field in cron.split())
    seen: set[datetime] = set()
    found: list[datetime] = []
    moment, local = start, start.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    while moment < end:
        moment, before = moment + timedelta(minutes=1), local
        local = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        step = int((local - before).total_seconds() // 60)
        passed = [before + timedelta(minutes=n) for n in range(1, step + 1)] or [local]
        fresh = [time for time in passed if time not in seen]
        seen.update(fresh)
        if any(_matches(time, minutes, hours, weekdays) for time in fresh):
            found.append(moment)
    return found


def _values(field: str) -> set[int]:
    found: set[int] = set()
    for part in field.replace("sun", "0").split(","):
        numbers, _, step = part.partition("/")
        low, _, high = numbers.partition("-")
        first, last = (0, 59) if numbers == "*" else (int(low), int(high or low))
        found.update(range(first, last + 1, int(step or 1)))
    return found


def _matches(time: datetime, minutes: set[int], hours: set[int], weekdays: set[int]) -> bool:
    return time.minute in minutes and time.hour in hours and time.isoweekday() % 7 in weekdays


@pytest.mark.parametrize("cron", CRONS)
@pytest.mark.parametrize(
    ("zone", "start"),
    [
        (BERLIN, "2026-03-28 22:00"),
        (BERLIN, "2026-10-24 22:00"),
        (NEW_YORK, "2026-03-08 04:00"),
        (NEW_YORK, "2026-11-01 03:00"),
    ],
)
def test_every_tick_around_a_change(conn: psycopg.Connection, cron: str, zone: str, start: str):
    """The same as looking at every minute of seven hours."""
    begin, end = at(start), at(start) + timedelta(hours=7)
    assert ticks(conn, cron, begin, end, zone) == reference(cron, zone, begin, end)


def test_ticks_only_grow(conn: psycopg.Connection):
    """Whatever the expression, zone and moment: the next tick is later, and asking from between gives the same one."""
    dice = random.Random(7)
    for _ in range(150):
        cron = " ".join(
            dice.choice(["*", f"*/{dice.randrange(1, 9)}", str(dice.randint(low, high)), f"{low}-{high - 2}"])
            for low, high in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
        )
        zone = dice.choice([BERLIN, NEW_YORK, "UTC", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"])
        moment = at("2020-01-01") + timedelta(seconds=dice.randrange(10 * 365 * 86400))
        for _ in range(3):
            tick = next_tick(conn, cron, moment, zone)
            assert tick > moment, (cron, zone, moment)
            between = moment + (tick - moment) * dice.random()
            assert next_tick(conn, cron, between, zone) == tick, (cron, zone, moment, between)
            moment = tick


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("60 * * * *", 'minute must be numbers from 0 to 59, ranges and steps of them, or *, got "60"'),
        ("* 24 * * *", 'hour must be numbers from 0 to 23, ranges and steps of them, or *, got "24"'),
        ("* * 0 * *", 'day of month must be numbers from 1 to 31, ranges and steps of them, or *, got "0"'),
        ("* * * 13 *", "month must be numbers from 1 to 12, names from jan to dec, ranges and steps"),
        ("* * * * 8", "day of week must be numbers from 0 to 7"),
        ("* * * * funday", 'got "funday"'),
        ("* * * mon *", "month must be numbers from 1 to 12, names from jan to dec, ranges and steps"),
        ("5-1 * * * *", 'got "5-1"'),
        ("*/0 * * * *", 'got "*/0"'),
        ("1,,2 * * * *", 'got ""'),
        ("1-2-3 * * * *", 'got "1-2-3"'),
        ("-1 * * * *", 'got "-1"'),
        ("* * * *", 'it must be five fields, got "4 fields"'),
        ("* * * * * *", 'it must be five fields, got "6 fields"'),
        ("", "it must be five fields"),
        ("@reboot", "it must be five fields, or @hourly"),
        ("0 0 31 2 *", 'cron expression "0 0 31 2 *" matches no day'),
    ],
)
def test_what_is_wrong_is_said(conn: psycopg.Connection, cron: str, words: str):
    with refused("SK001", words):
        next_tick(conn, cron, at("2026-01-01"))


def test_an_unknown_time_zone(conn: psycopg.Connection):
    with refused("SK001", 'unknown time zone "Nowhere"'):
        next_tick(conn, "* * * * *", at("2026-01-01"), "Nowhere")
