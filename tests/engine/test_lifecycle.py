"""The life of a subscription: active, paused, dead, cancelled."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import Row, ack, broken, call, configure, drain, lag, pass_time, pop, push, refused, take

Q = "orders"


def subscribe(mq: psycopg.Connection, group: str = "g", **options: Any) -> Row:
    return call(mq, "subscribe", group_name=group, **({"queue": Q} | options))[0]


def status(mq: psycopg.Connection, group: str = "g") -> str:
    query = "SELECT status FROM skep.subscriptions WHERE group_name = %s ORDER BY id DESC LIMIT 1"
    ((found,),) = mq.execute(query, [group]).fetchall()
    return found


def detect(mq: psycopg.Connection) -> dict[str, bool]:
    return {row.group_name: row.died for row in call(mq, "detect_dead_groups")}


def test_defaults(mq: psycopg.Connection):
    """11: active, from now or the beginning, 60/300/3."""
    row = subscribe(mq, mode="new")
    assert (row.status, row.mode, row.backfill) == ("ACTIVE", "new", False)
    assert (row.heartbeat_interval, row.heartbeat_timeout, row.miss_threshold) == (60, 300, 3)
    assert subscribe(mq, "h").backfill


def test_options_round_trip(mq: psycopg.Connection):
    """12: and an existing subscription keeps them."""
    given = {"heartbeat_interval": 5, "heartbeat_timeout": 20, "miss_threshold": 2, "backfill": False}
    for options in (given, {"heartbeat_interval": 1, "backfill": True}):
        row = subscribe(mq, mode="all", **options)
        assert {name: getattr(row, name) for name in given} == given


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_interval": 0}, {"heartbeat_interval": -1}, {"heartbeat_interval": 300}, {"heartbeat_timeout": 60},
        {"miss_threshold": 0}, {"mode": "timestamp"}, {"mode": "offset"}, {"mode": "sideways"},
    ],
)  # fmt: skip
def test_options_are_checked(mq: psycopg.Connection, options: dict[str, Any]):
    """13"""
    with refused("SK001"):
        subscribe(mq, **options)
    assert mq.execute("SELECT FROM skep.subscriptions").fetchall() == []


def test_pause_and_resume(mq: psycopg.Connection):
    """16, 32, 89: nothing is delivered, answers are refused, nothing is lost, the position stays."""
    push(mq, Q, *range(5))
    take(mq, Q, batch=1)
    batch = pop(mq, Q, batch=2)
    call(mq, "ack", lease=batch[0].lease, id=batch[0].id)
    call(mq, "pause", group_name="g", queue=Q)
    assert status(mq) == "PAUSED"
    with refused("SK003"):
        call(mq, "ack", lease=batch[0].lease)
    assert pop(mq, Q) == []
    pass_time(mq, 3600)
    assert detect(mq) == {}  # 53: a paused group is never dead
    assert call(mq, "pause", group_name="g", queue=Q) == []  # harmless to repeat
    assert [row.status for row in call(mq, "resume", group_name="g", queue=Q)] == ["ACTIVE"]
    assert [(row.offset, row.attempt) for row in drain(mq, Q)] == [(2, 1), (3, 1), (4, 1)]
    assert broken(mq) == {}


def test_cancel_is_final_until_subscribed_anew(mq: psycopg.Connection):
    """17, 18: a new life begins at its own start."""
    push(mq, Q, *range(3))
    take(mq, Q, batch=1)
    batch = pop(mq, Q)
    call(mq, "cancel", group_name="g", queue=Q)
    for verb in ("resume", "heartbeat", "pause"):
        with refused("SK007", "cancelled"):
            call(mq, verb, group_name="g", queue=Q)
    with refused("SK007", "cancelled"):
        pop(mq, Q)
    with refused("SK003"):
        call(mq, "ack", lease=batch[0].lease)
    assert call(mq, "cancel", group_name="g", queue=Q) == []
    assert status(mq) == "CANCELLED"
    assert lag(mq) == {"Default": 2}  # what it has done stays on record
    assert subscribe(mq, mode="all").status == "ACTIVE"
    assert take(mq, Q) == [0, 1, 2]
    assert broken(mq) == {}


def test_remove(mq: psycopg.Connection):
    """64: counts what no longer waits for it; unknown is not found, twice is a conflict."""
    push(mq, Q, *range(4))
    take(mq, Q, batch=1)
    assert call(mq, "cancel_group", group_name="g", queue=Q)[0].cancel_group == 3
    with refused("SK007"):
        call(mq, "cancel_group", group_name="g", queue=Q)
    with refused("SK002"):
        call(mq, "cancel_group", group_name="nobody", queue=Q)


def test_a_new_life_has_every_partition(mq: psycopg.Connection):
    """Also one that had a start of its own, by a seek, and was cancelled with the queue."""
    push(mq, Q, 0, partition="a")
    push(mq, Q, 1, partition="b")
    subscribe(mq)
    call(mq, "seek", group_name="g", queue=Q, position="end", partition="a")
    call(mq, "cancel", group_name="g", queue=Q)
    subscribe(mq, mode="all")
    statuses = mq.execute("SELECT DISTINCT status FROM skep.subscriptions").fetchall()
    assert statuses == [("ACTIVE",)]
    assert sorted(delivery.payload for delivery in drain(mq, Q)) == [0, 1]
    assert broken(mq) == {}


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "heartbeat"])
def test_unknown_subscriptions(mq: psycopg.Connection, verb: str):
    """20"""
    with refused("SK002", "nobody", Q):
        call(mq, verb, group_name="nobody", queue=Q)


def test_one_queue_of_a_namespace_is_paused(mq: psycopg.Connection):
    """The most specific subscription decides."""
    push(mq, "shop.a", 1)
    push(mq, "shop.b", 2)
    subscribe(mq, queue=None, namespace="shop")
    call(mq, "pause", group_name="g", queue="shop.a")
    assert take(mq, None, namespace="shop", partitions=5) == [2]
    assert pop(mq, "shop.a") == []
    call(mq, "resume", group_name="g", queue="shop.a")
    assert take(mq, None, namespace="shop", partitions=5) == [1]


LIMITS = ("heartbeat_interval", "heartbeat_timeout", "miss_threshold")


@pytest.mark.parametrize(
    ("limits", "seconds", "missed"),
    [
        ((60, 300, 3), 299, None), ((60, 300, 3), 301, 5), ((60, 300, 3), 10_000, 166),  # the timeout is later
        ((60, 90, 3), 89, None), ((60, 90, 3), 91, 1), ((60, 90, 3), 179, 2), ((60, 90, 3), 181, 3),  # the misses are
        ((10, 20, 1), 19, None), ((10, 20, 1), 21, 2), ((10, 20, 5), 49, 4), ((10, 20, 5), 51, 5),
    ],
)  # fmt: skip
def test_a_group_dies_by_the_clock(
    mq: psycopg.Connection, limits: tuple[float, float, int], seconds: float, missed: int | None
):
    """When its silence reaches the greater of the timeout and of so many heartbeats; misses are computed."""
    subscribe(mq, **dict(zip(LIMITS, limits, strict=True)))
    pass_time(mq, seconds)
    died = missed is not None and missed >= limits[2]
    assert [(row.missed_heartbeats, row.died) for row in call(mq, "detect_dead_groups")] == (
        [] if missed is None else [(missed, died)]
    )
    assert status(mq) == ("DEAD" if died else "ACTIVE")


@pytest.mark.parametrize(("timeout", "pace"), [(300, 301), (300, 86_400), (5, 60)])
def test_detection_depends_on_the_clock_alone(mq: psycopg.Connection, timeout: float, pace: float):
    """It finds a silent group though it runs less often than the timeout, and it writes no heartbeat itself."""
    subscribe(mq, heartbeat_interval=timeout / 3, heartbeat_timeout=timeout)
    subscribe(mq, "long", heartbeat_timeout=30 * 86_400, heartbeat_interval=86_400)
    subscribe(mq, "late", heartbeat_timeout=timeout, heartbeat_interval=timeout / 3, miss_threshold=10**6)
    for number in range(5):
        beats = "SELECT array_agg(last_heartbeat_at ORDER BY id) FROM skep.subscriptions"
        pass_time(mq, pace)
        before = mq.execute(beats).fetchall()
        assert detect(mq) == ({"g": True, "late": False} if number == 0 else {"late": False})
        assert mq.execute(beats).fetchall() == before


def test_when_a_group_died(mq: psycopg.Connection):
    """The grace of a dead group counts from the detection: while nobody looked, nobody could warn."""
    subscribe(mq)
    pass_time(mq, 86_400)
    detect(mq)
    changed = "SELECT clock_timestamp() - status_changed_at < '1 min' FROM skep.subscriptions"
    assert mq.execute(changed).fetchall() == [(True,)]
    pass_time(mq, 600)
    detect(mq)
    assert mq.execute(changed).fetchall() == [(False,)]
    call(mq, "heartbeat", group_name="g", queue=Q)
    assert (status(mq), mq.execute(changed).fetchall()) == ("ACTIVE", [(True,)])


@pytest.mark.parametrize(("grace", "kept"), [(None, True), (86_400, True), (0, False)])
def test_a_dead_group_keeps_its_claim(mq: psycopg.Connection, grace: float | None, *, kept: bool):
    """For a grace period, 7 days by default: an outage of some minutes takes nothing from anybody."""
    configure(mq, Q, completed_retention_seconds=0, **({} if grace is None else {"dead_group_grace_seconds": grace}))
    subscribe(mq)
    subscribe(mq, "other")
    push(mq, Q, *range(3))
    drain(mq, Q, "other")
    pass_time(mq, 420)
    call(mq, "heartbeat", group_name="other", queue=Q)
    assert detect(mq) == {"g": True}
    for _ in range(2):
        call(mq, "retain")
    assert take(mq, Q) == ([0, 1, 2] if kept else [])
    assert broken(mq) == {}


def test_any_number_of_detectors_agree(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """50, 52, 102: runs are not counted; several queues in one run; the dead and cancelled are not looked at again."""
    subscribe(mq, miss_threshold=8)
    subscribe(mq, "h", queue="other", miss_threshold=8)
    pass_time(mq, 310)
    detectors = [mq, connect_module(), connect_module()]
    for _ in range(5):
        assert [detect(each) for each in detectors] == [{"g": False, "h": False}] * 3
    pass_time(mq, 200)
    call(mq, "cancel", group_name="h", queue="other")
    assert [detect(each) for each in detectors] == [{"g": True}, {}, {}]


@pytest.mark.parametrize("sign", ["pop", "heartbeat", "ack", "extend", "lease", "subscribe"])
def test_signs_of_life(mq: psycopg.Connection, sign: str):
    """51, 54: each of them resets the misses."""
    push(mq, Q, 1, 2)
    batch = pop(mq, Q, batch=1, lease_time=604800)
    pass_time(mq, 410)
    if sign == "pop":
        pop(mq, Q, "g", partition="elsewhere")
        pop(mq, Q)
    elif sign == "heartbeat":
        call(mq, "heartbeat", group_name="g", queue=Q)
    elif sign == "ack":
        ack(mq, batch)
    elif sign == "extend":
        call(mq, "extend", lease=batch[0].lease)
    if sign != "lease":
        mq.execute("UPDATE skep.runs SET expires_at = now() - interval '1 s' WHERE lease_id IS NOT NULL")
    if sign == "subscribe":
        pass_time(mq, 100)
        assert detect(mq) == {"g": True}
        assert subscribe(mq).status == "ACTIVE"
    else:
        pass_time(mq, 100 if sign != "lease" else 10_000)
    assert not any(detect(mq).values())
    assert status(mq) == "ACTIVE"


def test_idle_pops_keep_a_group_alive(mq: psycopg.Connection):
    """101: for a quarter of an hour, and hardly a write."""
    pop(mq, Q)
    push(mq, Q, 1)
    drain(mq, Q)
    for _ in range(90):
        pass_time(mq, 10)
        assert pop(mq, Q) == []
        assert detect(mq) == {}


@pytest.mark.parametrize("own", [{"queue": "shop.a"}, {"queue": "shop.a", "partition": "p"}])
def test_pops_of_a_namespace_keep_its_queues_alive(mq: psycopg.Connection, own: dict[str, Any]):
    """Also a queue or a partition that has a subscription of its own, because it was paused for a while, say."""
    push(mq, "shop.a", 1, partition="p")
    subscribe(mq, queue=None, namespace="shop")
    subscribe(mq, **own)
    drain(mq, None, namespace="shop")
    for _ in range(20):
        pass_time(mq, 60)
        assert pop(mq, None, namespace="shop") == []
        assert detect(mq) == {}


def test_a_pop_revives(mq: psycopg.Connection):
    """63: and it continues at its cursor."""
    push(mq, Q, *range(3))
    take(mq, Q, batch=1)
    pass_time(mq, 1000)
    assert detect(mq) == {"g": True}
    assert take(mq, Q) == [1, 2]
    assert status(mq) == "ACTIVE"


def test_queue_mode_never_dies(mq: psycopg.Connection):
    push(mq, Q, 1)
    call(mq, "pop", queue=Q, batch=1, auto_ack=True)
    pass_time(mq, 10_000)
    assert detect(mq) == {}


def test_write_block(mq: psycopg.Connection):
    """8, 9, 10: pub_sub only, when asked for, and only ACTIVE counts."""
    push(mq, Q, 0)
    configure(mq, Q, block_without_subscribers=True)
    push(mq, Q, 1)  # mixed
    configure(mq, Q, semantics="pub_sub")
    with refused("SK006", Q):
        push(mq, Q, 2)
    subscribe(mq)
    push(mq, Q, 3)
    call(mq, "pause", group_name="g", queue=Q)
    with refused("SK006", Q):
        push(mq, Q, 4)
    call(mq, "resume", group_name="g", queue=Q)
    push(mq, Q, 5)
    assert take(mq, Q) == [0, 1, 3, 5]


VIEW = """
    SELECT required_consumer_groups, completed_consumer_groups, pending_groups
    FROM skep.fanout WHERE queue = %s AND partition = 'Default' ORDER BY "offset"
"""


def test_fan_out_of_a_message(mq: psycopg.Connection):
    """4, 27, 31: required by those subscribed, completed one by one, whoever still owes it is named."""

    def state() -> list[tuple[int, int, list[str]]]:
        rows = call(mq, "message_status", queue=Q, partition="Default")
        told = [(row.required_consumer_groups, row.completed_consumer_groups, row.pending_groups) for row in rows]
        assert mq.execute(VIEW, [Q]).fetchall() == told
        return told

    for group in "abc":
        subscribe(mq, group)
    push(mq, Q, *range(2))
    assert state() == [(3, 0, ["a", "b", "c"])] * 2
    take(mq, Q, "a", batch=1)
    batch = pop(mq, Q, "b")
    call(mq, "ack", lease=batch[1].lease, id=batch[1].id)
    assert state() == [(3, 1, ["b", "c"]), (3, 1, ["a", "c"])]
    call(mq, "cancel", group_name="c", queue=Q)
    assert state() == [(2, 1, ["b"]), (2, 1, ["a"])]
    states = {row.group_name: row.state for row in call(mq, "message_groups", id=batch[0].id)}
    assert states == {"a": "completed", "b": "leased", "c": "released"}
    holds = {(row.group_name, row.pending, row.is_floor) for row in call(mq, "pending_groups", queue=Q)}
    assert holds == {("a", 1, False), ("b", 2, True)}


def test_force_complete(mq: psycopg.Connection):
    """Orphans older than T; what is leased is not touched."""
    push(mq, Q, *range(4))
    subscribe(mq)
    pass_time(mq, 3600)
    push(mq, Q, 4)
    batch = pop(mq, Q, batch=1)
    assert call(mq, "force_complete", group_name="g", queue=Q, older_than="30 min")[0].force_complete == 0
    ack(mq, batch)
    assert call(mq, "force_complete", group_name="g", queue=Q, older_than="30 min")[0].force_complete == 3
    assert take(mq, Q) == [4]
    assert broken(mq) == {}
