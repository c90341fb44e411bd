"""Schedules: each tick is pushed once, whatever was missed and however late the call is."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import assert_indexed, explained
from tests.engine.verbs import Row, broken, call, configure, pass_time, push, refused, take

MINUTE = timedelta(minutes=1)


def create(connection: psycopg.Connection, name: str = "s", cron: str = "* * * * *", **more: Any) -> Row:
    wanted = {"name": name, "cron": cron, "queue": "q", "payload": Jsonb(name)} | more
    return call(connection, "create_schedule", **wanted)[0]


def wind_back(connection: psycopg.Connection, length: timedelta) -> datetime:
    """Let this much time pass for every schedule since its last tick; return the next tick."""
    query = "UPDATE skep.schedules SET next_at = date_trunc('minute', clock_timestamp()) - %s RETURNING next_at"
    return connection.execute(query, [length]).fetchall()[0][0].astimezone(UTC)


def run(connection: psycopg.Connection, **options: Any) -> tuple[int, int, list[str]]:
    (row,) = call(connection, "run_schedules", **options)
    return row.messages, row.refused, row.queues


def pushed(connection: psycopg.Connection, queue: str = "q") -> list[str]:
    """Return the ticks that were pushed."""
    return [row.headers["skep-tick"] for row in call(connection, "peek", queue=queue, max_rows=10_000)]


def text(tick: datetime) -> str:
    return f"{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def test_a_tick_is_a_message(mq: psycopg.Connection):
    made = create(mq, partition="p", payload=Jsonb({"kind": "sales"}), headers=Jsonb({"own": 1}))
    assert (made.next_at.second, made.next_at > datetime.now(UTC), made.last_at, made.paused) == (0, True, None, False)
    assert run(mq) == (0, 0, [])
    tick = wind_back(mq, timedelta())
    assert run(mq) == (1, 0, ["q"])
    assert run(mq) == (0, 0, [])
    (message,) = call(mq, "pop", queue="q", group_name="g")
    assert (message.partition, message.payload) == ("p", {"kind": "sales"})
    assert message.headers == {"own": 1, "skep-schedule": "s", "skep-tick": text(tick)}
    (row,) = call(mq, "list_schedules")
    assert (row.last_at, row.next_at, row.error) == (tick, tick + MINUTE, None)
    assert broken(mq) == {}


@pytest.mark.parametrize(("missed", "expected"), [("all", 11), ("one", 1), ("skip", 1)])
def test_after_an_outage(mq: psycopg.Connection, missed: str, expected: int):
    """Ten ticks were missed and one is due now: all of them are pushed, or the last, which is not late."""
    create(mq, missed=missed)
    first = wind_back(mq, 10 * MINUTE)
    assert run(mq)[0] == expected
    ticks = pushed(mq)
    assert ticks == [text(first + n * MINUTE) for n in range(11)][-expected:]
    assert call(mq, "list_schedules")[0].next_at == first + 11 * MINUTE
    assert run(mq)[0] == 0


@pytest.mark.parametrize(("missed", "expected"), [("all", 3), ("one", 1), ("skip", 0)])
def test_an_outage_whose_last_tick_is_old(mq: psycopg.Connection, missed: str, expected: int):
    noon = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    create(mq, cron=f"0 {noon.hour} * * *", missed=missed)
    mq.execute("UPDATE skep.schedules SET next_at = %s", [noon - timedelta(days=2)])
    run(mq)
    assert pushed(mq) == [text(noon - timedelta(days=days)) for days in (2, 1, 0)][3 - expected :]
    assert call(mq, "list_schedules")[0].next_at == noon + timedelta(days=1)


def test_each_call_pushes_a_bounded_number_of_missed_ticks(mq: psycopg.Connection):
    create(mq, missed="all")
    first = wind_back(mq, 1500 * MINUTE)
    runs = [run(mq)[0] for _ in range(3)]
    assert (runs[0], sum(runs) in (1501, 1502)) == (1000, True), runs  # 1502: a minute has ended meanwhile
    ticks = pushed(mq)
    assert (len(set(ticks)), ticks == sorted(ticks), ticks[0]) == (sum(runs), True, text(first))


@pytest.mark.parametrize("missed", ["one", "skip"])
def test_an_outage_of_years_costs_no_more(mq: psycopg.Connection, missed: str):
    """It does not take a step for each tick that was missed."""
    create(mq, missed=missed)
    wind_back(mq, timedelta(minutes=2))
    few = len(explained(mq, lambda: run(mq)))
    wind_back(mq, timedelta(days=3650))
    many = explained(mq, lambda: run(mq))
    assert len(many) < 20 * few
    assert len(pushed(mq)) == 2


def test_create_an_existing_schedule_again(mq: psycopg.Connection):
    """Other content does not change the next tick; another time does. A tick that is due is not skipped by it."""
    create(mq)
    tick = wind_back(mq, timedelta())
    assert create(mq, payload=Jsonb("new"), missed="all").next_at == tick
    assert run(mq)[0] == 1
    assert take(mq, "q") == ["new"]
    moved = create(mq, cron="@yearly", time_zone="europe/berlin")
    assert (moved.time_zone, moved.next_at.month, moved.last_at) == ("Europe/Berlin", 12, tick)


def test_pause_and_resume(mq: psycopg.Connection):
    """Ticks during the pause are not missed ticks."""
    create(mq, missed="all")
    assert call(mq, "pause_schedule", name="s")[0].paused
    wind_back(mq, 10 * MINUTE)
    assert run(mq)[0] == 0
    resumed = call(mq, "resume_schedule", name="s")[0]
    assert (resumed.paused, resumed.next_at > datetime.now(UTC)) == (False, True)
    tick = wind_back(mq, timedelta())
    assert call(mq, "resume_schedule", name="s")[0].next_at == tick, "it was not paused"
    assert run(mq)[0] == 1
    for function in ("pause_schedule", "resume_schedule"):
        with refused("SK002", 'there is no schedule "nothing"'):
            call(mq, function, name="nothing")


def test_list_and_delete(mq: psycopg.Connection):
    for name, queue in (("b", "q"), ("a", "q"), ("c", "other")):
        create(mq, name, queue=queue)
    assert [row.name for row in call(mq, "list_schedules")] == ["a", "b", "c"]
    assert [row.name for row in call(mq, "list_schedules", queue="q")] == ["a", "b"]
    assert call(mq, "delete_schedule", name="a") == [(True,)]
    assert call(mq, "delete_schedule", name="a") == [(False,)]
    push(mq, "q", 1)
    call(mq, "delete_queue", queue="q")
    assert [row.name for row in call(mq, "list_schedules")] == ["c"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cron": "every day"}, "it must be five fields"),
        ({"time_zone": "Nowhere"}, 'unknown time zone "Nowhere"'),
        ({"time_zone": "Nowhere3"}, 'unknown time zone "Nowhere3"'),
        ({"missed": "some"}, "missed must be one of skip, one, all, got some"),
        ({"name": ""}, "schedule name is missing"),
        ({"queue": "x" * 256}, "queue name is 256 characters long"),
        ({"headers": Jsonb([])}, "headers must be a JSON object, got a JSON array"),
    ],
)
def test_errors_say_what_is_wrong(mq: psycopg.Connection, wrong: dict[str, Any], words: str):
    with refused("SK001", words):
        create(mq, **wrong)
    assert call(mq, "list_schedules") == []


def test_a_refused_tick_waits_and_delays_no_other(mq: psycopg.Connection):
    """The row has the error; the tick is pushed when the queue accepts messages again."""
    configure(mq, "blocked", semantics="pub_sub", block_without_subscribers=True)
    create(mq, "a", queue="blocked")
    create(mq, "b")
    tick = wind_back(mq, timedelta())
    assert run(mq) == (1, 1, ["q"])
    (row,) = call(mq, "list_schedules", queue="blocked")
    assert ('"blocked" takes no messages' in row.error, row.next_at) == (True, tick)
    call(mq, "subscribe", group_name="g", queue="blocked")
    assert run(mq) == (1, 0, ["blocked"])
    assert call(mq, "list_schedules", queue="blocked")[0].error is None


def test_a_tick_for_a_locked_partition_is_left_for_later(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]
):
    """An open push delays its own schedule, and no other."""
    push(mq, "q", 0)
    create(mq, "a")
    create(mq, "b", queue="free")
    wind_back(mq, timedelta())
    other = connect_module()
    with other.transaction():
        push(other, "q", 1)
        assert run(mq) == (1, 0, ["free"])
    assert run(mq) == (1, 0, ["q"])


def test_many_refused_ticks_delay_no_other(mq: psycopg.Connection):
    """They have been due for longer than the others: they are tried last."""
    configure(mq, "blocked", semantics="pub_sub", block_without_subscribers=True)
    for number in range(3):
        create(mq, f"refused {number}", queue="blocked")
    wind_back(mq, timedelta(hours=1))
    create(mq, "good")
    mq.execute("UPDATE skep.schedules SET next_at = date_trunc('minute', clock_timestamp()) WHERE name = 'good'")
    assert [run(mq, max_schedules=2)[0] for _ in range(2)] == [0, 1]
    call(mq, "subscribe", group_name="g", queue="blocked")
    assert [run(mq, max_schedules=2)[0] for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("is_new", [False, True], ids=["locked", "being_created"])
def test_many_locked_ticks_delay_no_other(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection], *, is_new: bool
):
    """They do not count towards the limit; a partition that is being created is waited for once."""
    if not is_new:
        push(mq, "q", 0)
    for number in range(20):
        create(mq, f"locked {number}")
    wind_back(mq, timedelta(hours=1))
    create(mq, "good", queue="free")
    mq.execute("UPDATE skep.schedules SET next_at = date_trunc('minute', clock_timestamp()) WHERE name = 'good'")
    other = connect_module()
    with other.transaction():
        push(other, "q", 1)
        mq.execute("SET LOCAL statement_timeout = '1s'")
        assert run(mq, max_schedules=2) == (1, 0, ["free"])


def test_a_clock_that_is_set_back_repeats_no_tick(mq: psycopg.Connection):
    create(mq)
    wind_back(mq, timedelta())
    run(mq)
    mq.execute("UPDATE skep.schedules SET next_at = next_at + interval '1 hour', last_at = last_at + interval '1 hour'")
    assert (run(mq)[0], len(pushed(mq)), broken(mq)) == (0, 1, {})


@pytest.mark.parametrize("cron", ["* * * * *", "*/2 * * * *"], ids=["resume", "other_cron"])
def test_a_clock_that_is_set_back_and_a_changed_schedule(mq: psycopg.Connection, cron: str):
    """The next tick is after the last one that was pushed, not after the time of the clock."""
    create(mq)
    wind_back(mq, timedelta(0))
    assert run(mq)[0] == 1
    pass_time(mq, -3600)
    call(mq, "pause_schedule", name="s")
    changed = create(mq, cron=cron)
    changed = call(mq, "resume_schedule", name="s")[0] if cron == "* * * * *" else changed
    assert changed.next_at > changed.last_at
    assert broken(mq) == {}


def test_a_call_runs_at_most_its_limit_of_schedules(mq: psycopg.Connection):
    for number in range(5):
        create(mq, f"s{number}", partition=f"p{number}")
    wind_back(mq, timedelta())
    assert [run(mq, max_schedules=2)[0] for _ in range(4)] == [2, 2, 1, 0]


def test_running_schedules_uses_the_index(mq: psycopg.Connection):
    for number in range(20):
        create(mq, f"s{number}")
    mq.execute("ANALYZE skep.schedules")
    assert_indexed([plan for plan in explained(mq, lambda: run(mq)) if "schedules" in plan.query], "schedules_next_at")
