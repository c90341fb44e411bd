"""The rules of the faults suite, on constructed histories: each accepts a correct one and rejects a broken one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from faults.checker import RULES, Index, check
from faults.history import REDRIVEN, Ack, Content, History, Injection, Message, Pop, Push, Run, Sample, Seek
from faults.state import DeadLetter, Head, Queue, Setup, State
from faults.timeline import timeline

PARTITION = 7
SETUP = Setup((Queue("orders", ("g", "transform"), ("auto",), retry_limit=2), Queue("derived")))
DERIVED = 8


def content(value: str, partition: str = "p", **more: Any) -> Content:
    return Content(partition, {"v": value}, **more)


class Case:
    """Three messages: pushed at 0, delivered to two groups at 1, acknowledged at 2; `a` is of the outbox."""

    def __init__(self) -> None:
        self.setup = SETUP
        values = ("a", "b", "c")
        locations = tuple((PARTITION, n) for n in range(3))
        messages = tuple(Message(location, content(value)) for location, value in zip(locations, values, strict=True))
        made = tuple(f"{value} derived" for value in values)
        self.history = History(
            pushes=[
                Push("p", "orders", (content("a"),), 0, 0.1, "ok", outbox=True),
                Push("p", "orders", (content("b"), content("c")), 0, 0.1, "ok", locations[1:]),
                Push("t", "derived", tuple(content(value) for value in made), 2, 2.1, "ok"),
            ],
            pops=[
                Pop("c1", "g", "orders", 1, 1.1, "ok", "L1", messages, lease_time=2),
                Pop("t", "transform", "orders", 1, 1.1, "ok", "T1", messages, lease_time=2),
                Pop("au", "auto", "orders", 1, 1.1, "ok", "A1", messages, auto=True),
            ],
            acks=[
                Ack("c1", "g", "L1", "completed", locations, 2, 2.1, "ok"),
                Ack("t", "transform", "T1", "completed", locations, 2, 2.1, "ok"),
            ],
            samples=[
                Sample(1.0, {PARTITION: (0, 2)}, {("g", PARTITION): (0, 1)}),
                Sample(3.0, {PARTITION: (0, 2)}, {("g", PARTITION): (3, 0)}),
            ],
        )
        self.state = State(
            log={(DERIVED, n): content(value) for n, value in enumerate(made)},
            heads={PARTITION: Head("orders", "p", 0, 2), DERIVED: Head("derived", "p", 0, 2)},
            cursors={(group, PARTITION): 3 for group in ("g", "transform", "auto")},
            rows={"a"},
            connections=10,
            most_connections=46,
            memory={"server": (50, 60)},
        )
        self.state.log |= {location: content(value) for location, value in zip(locations, values, strict=True)}

    def broken(self) -> set[str]:
        return {violation.rule for violation in check(self.setup, self.history, self.state)}

    def change(self, what: str, number: int, **changes: Any) -> None:
        events = getattr(self.history, what)
        events[number] = replace(events[number], **changes)

    def deliver(self, group: str, at: float, *offsets: int, lease: str = "L9") -> None:
        messages = tuple(Message((PARTITION, offset), content("abc"[offset])) for offset in offsets)
        self.history.pops.append(Pop("c9", group, "orders", at, at + 0.1, "ok", lease, messages))

    def ack(self, at: float, *offsets: int, lease: str = "L9", kind: Any = "completed", outcome: Any = "ok") -> None:
        locations = tuple((PARTITION, offset) for offset in offsets)
        self.history.acks.append(Ack("c9", "g", lease, kind, locations, at, at + 0.1, outcome))

    def fail(self, *offsets: int) -> None:
        """Group g fails these messages, and they become dead letters."""
        self.change("acks", 0, locations=tuple((PARTITION, n) for n in range(3) if n not in offsets))
        self.ack(2, *offsets, lease="L1", kind="failed")
        self.state.dead_letters = [DeadLetter("g", (PARTITION, offset), 1) for offset in offsets]

    def crowd(self, *done: tuple[int, int], last: int = 9, cursor: int = 10) -> None:
        """Add a partition of the crowd, delivered and completed in these ranges, in order."""
        for number, (first, end) in enumerate(done):
            run = Run("m", "many", f"R{number}", ((99, first, end),), 10 + number, 10.2 + number, "ok")
            self.history.runs.append(run)
            self.history.done_runs.append(replace(run, invoked=run.returned + 0.1, returned=run.returned + 0.2))
        self.state.crowd = {99: (last, cursor)}


Edit = Callable[[Case], None]


def two_values(case: Case) -> None:
    case.state.log[PARTITION, 1] = content("x")


def two_rows_at_an_offset(case: Case) -> None:
    case.state.duplicates = [(PARTITION, 1, content("x"))]


def another_payload(case: Case) -> None:
    case.change("pops", 0, messages=(Message((PARTITION, 0), Content("p", {"v": "a", "more": 1})), *_rest(case)))


def without_headers(case: Case) -> None:
    case.change("pushes", 0, items=(content("a", headers={"of": "a"}),))


def another_transaction_id(case: Case) -> None:
    case.change("pops", 0, messages=(Message((PARTITION, 0), content("a", transaction_id="t")), *_rest(case)))


def in_another_partition_at_delivery(case: Case) -> None:
    case.change("pops", 0, messages=(Message((PARTITION, 0), content("a", "elsewhere")), *_rest(case)))


def another_payload_of_a_dead_letter(case: Case) -> None:
    case.fail(1)
    case.state.dead_letters = [DeadLetter("g", (PARTITION, 1), 1, Content("p", {"v": "b", "more": 1}))]


def _rest(case: Case) -> tuple[Message, ...]:
    return case.history.pops[0].messages[1:]


def stored_twice(case: Case) -> None:
    case.state.log[PARTITION, 3] = content("b")
    case.state.heads[PARTITION] = Head("orders", "p", 0, 3)


def a_gap(case: Case) -> None:
    del case.state.log[PARTITION, 1]


def beyond_the_end(case: Case) -> None:
    case.state.heads[PARTITION] = Head("orders", "p", 0, 1)


def never_pushed(case: Case) -> None:
    del case.history.pushes[0]


def stored_though_it_failed(case: Case) -> None:
    case.change("pushes", 0, outcome="failed")


def not_there(case: Case) -> None:
    case.history.pushes.append(Push("p", "orders", (content("z"),), 0, 0.1, "ok"))


def not_at_the_returned_offset(case: Case) -> None:
    case.change("pushes", 1, locations=((PARTITION, 2), (PARTITION, 1)))


def in_another_partition(case: Case) -> None:
    case.change("pushes", 1, items=(content("b"), content("c", "elsewhere")))


def never_delivered(case: Case) -> None:
    pop = case.history.pops[0]
    case.change("pops", 0, messages=pop.messages[:2])
    case.change("acks", 0, locations=((PARTITION, 0), (PARTITION, 1)))


def never_delivered_with_a_cursor_of_0(case: Case) -> None:
    """A group must get every pushed message, whatever the database says about its start and cursor."""
    never_delivered(case)
    case.state.cursors["g", PARTITION] = 0


def skipped_at_the_beginning(case: Case) -> None:
    case.change("pops", 0, messages=_rest(case))
    case.change("acks", 0, locations=((PARTITION, 1), (PARTITION, 2)))


def never_completed(case: Case) -> None:
    case.change("acks", 0, outcome="refused")


def lag_is_left(case: Case) -> None:
    case.state.cursors["g", PARTITION] = 2


def a_lease_is_left(case: Case) -> None:
    case.state.leases = 1


def out_of_order(case: Case) -> None:
    case.deliver("g", 1.2, 2)  # while 0 and 1 were not acknowledged


def not_ascending(case: Case) -> None:
    case.change("pops", 0, messages=case.history.pops[0].messages[::-1])


def again_after_its_ack(case: Case) -> None:
    case.deliver("g", 5, 0)


def completed_twice(case: Case) -> None:
    case.change("acks", 0, returned=9.0)
    case.deliver("g", 4.5, 0)
    case.ack(5, 0)


def auto_ack_twice(case: Case) -> None:
    case.deliver("auto", 5, 0)


def auto_ack_never(case: Case) -> None:
    del case.history.pops[2]


def one_lost_response_does_not_explain_more_than_its_batch(case: Case) -> None:
    case.change("pops", 2, outcome="unknown", messages=(), batch=2)


def a_pop_that_failed_explains_nothing(case: Case) -> None:
    case.change("pops", 2, outcome="failed", messages=(), batch=3)


def a_lost_response_does_not_explain_earlier_messages(case: Case) -> None:
    """Offset 1 is delivered before the pop with the lost response begins, which cannot have had offset 0."""
    case.change("pops", 2, messages=_rest(case))
    case.history.pops.append(Pop("au", "auto", "orders", 2, 3, "unknown", auto=True, batch=3))


def two_leases(case: Case) -> None:
    case.deliver("g", 1.2, 2)
    case.ack(1.9, 2)


def stale_ack(case: Case) -> None:
    case.deliver("g", 1.2, 0)  # c9 has it before c1 acks


def late_ack(case: Case) -> None:
    case.change("acks", 0, invoked=9.0, returned=9.1)


def cursor_goes_back(case: Case) -> None:
    case.history.samples.append(Sample(4.0, {PARTITION: (0, 2)}, {("g", PARTITION): (2, 0)}))


def two_leases_in_a_sample(case: Case) -> None:
    case.history.samples.append(Sample(4.0, {PARTITION: (0, 2)}, {("g", PARTITION): (3, 2)}))


def deleted_too_early(case: Case) -> None:
    """The cursor is past it, but it is not acknowledged yet."""
    case.history.samples.insert(0, Sample(0.5, {PARTITION: (2, 2)}, {("g", PARTITION): (3, 0)}))


def missed_by_retention(case: Case) -> None:
    never_delivered(case)
    case.state.missed = [("g", PARTITION, 2, 3)]


def missed_within_the_limit(case: Case) -> None:
    """Three messages, and a limit of two: the last of them may not be deleted."""
    deleted_by_a_hard_limit(case)
    case.setup = Setup((replace(SETUP.queues[0], options={"max_size": 2}), *SETUP.queues[1:]))


def deleted_while_leased(case: Case) -> None:
    case.history.samples.append(Sample(1.5, {PARTITION: (1, 2)}, {}))


def made_twice(case: Case) -> None:
    case.state.log[DERIVED, 3] = content("a derived")
    case.state.heads[DERIVED] = Head("derived", "p", 0, 3)


def not_made(case: Case) -> None:
    del case.state.log[DERIVED, 2]
    case.state.heads[DERIVED] = Head("derived", "p", 0, 1)
    case.change("pushes", 2, items=case.history.pushes[2].items[:2])


def row_without_message(case: Case) -> None:
    case.state.rows.add("z")


def message_without_row(case: Case) -> None:
    case.state.rows.clear()


def dead_twice(case: Case) -> None:
    case.fail(1)
    case.state.dead_letters *= 2


def dead_and_completed(case: Case) -> None:
    case.fail(1)
    case.change("acks", 0, locations=((PARTITION, 0), (PARTITION, 1), (PARTITION, 2)))


def dead_for_no_reason(case: Case) -> None:
    case.fail(1)
    case.change("acks", 2, kind="released")


def redriven_twice(case: Case) -> None:
    a_redriven_copy(case)
    case.state.redriven = 2


def poison_completed(case: Case) -> None:
    case.history.pushes[0] = Push("p", "orders", (content("a!fail"),), 0, 0.1, "ok")
    case.state.log[PARTITION, 0] = content("a!fail")
    for number, pop in enumerate(case.history.pops):
        case.change("pops", number, messages=(Message((PARTITION, 0), content("a!fail")), *pop.messages[1:]))


def inconsistent_log(case: Case) -> None:
    case.state.broken = {"cursors count their leases": 1}


def connections_are_left(case: Case) -> None:
    case.state.connections = 47


def a_transaction_is_left(case: Case) -> None:
    case.state.in_transaction = 1


def dead_tuples_are_left(case: Case) -> None:
    case.state.dead_tuples = 10_000


def memory_has_grown(case: Case) -> None:
    case.state.memory = {"server": (50, 500)}


def crowd_with_a_gap(case: Case) -> None:
    case.crowd((0, 3), (5, 10))


def crowd_left_behind(case: Case) -> None:
    case.crowd((0, 5), cursor=5)


def crowd_lost_when_it_was_pushed(case: Case) -> None:
    case.crowd((0, 10))
    case.history.filled = 11


def crowd_twice(case: Case) -> None:
    case.crowd((0, 6), (5, 10))


def crowd_again(case: Case) -> None:
    case.crowd((0, 10))
    case.history.runs.append(Run("n", "many", "R9", ((99, 4, 5),), 20, 20.1, "ok"))


def crowd_out_of_order(case: Case) -> None:
    case.crowd((5, 10), (0, 5))


RED: dict[str, list[Edit]] = {
    "one message at an offset": [two_values, two_rows_at_an_offset],
    "a message stays as it was pushed": [
        another_payload,
        without_headers,
        another_transaction_id,
        in_another_partition_at_delivery,
        another_payload_of_a_dead_letter,
    ],
    "a message is stored once": [stored_twice],
    "offsets are dense": [a_gap, beyond_the_end],
    "every stored message was pushed": [never_pushed, stored_though_it_failed],
    "accepted messages are stored": [not_there, not_at_the_returned_offset, in_another_partition],
    "every group completes every message": [
        never_delivered,
        never_delivered_with_a_cursor_of_0,
        skipped_at_the_beginning,
        never_completed,
    ],
    "lag returns to zero": [lag_is_left, a_lease_is_left],
    "in order": [out_of_order, not_ascending],
    "no delivery after the ack": [again_after_its_ack, completed_twice],
    "at most once with auto_ack": [
        auto_ack_twice,
        auto_ack_never,
        one_lost_response_does_not_explain_more_than_its_batch,
        a_pop_that_failed_explains_nothing,
        a_lost_response_does_not_explain_earlier_messages,
    ],
    "one lease at a time": [two_leases],
    "a stale ack is rejected": [stale_ack, late_ack],
    "cursors only go forward": [cursor_goes_back, two_leases_in_a_sample],
    "retention keeps pending messages": [deleted_too_early, missed_by_retention, missed_within_the_limit],
    "retention keeps leased messages": [deleted_while_leased],
    "transactions are atomic": [made_twice, not_made, row_without_message, message_without_row],
    "dead letters are accounted for": [
        dead_twice,
        dead_and_completed,
        dead_for_no_reason,
        redriven_twice,
        poison_completed,
    ],
    "check_consistency() passes": [inconsistent_log],
    "many partitions: every message is completed": [crowd_with_a_gap, crowd_left_behind, crowd_lost_when_it_was_pushed],
    "many partitions: no message is completed twice": [crowd_twice, crowd_again],
    "many partitions: messages are in order": [crowd_out_of_order],
    "connections, dead tuples and memory return to normal": [
        connections_are_left,
        a_transaction_is_left,
        dead_tuples_are_left,
        memory_has_grown,
    ],
}


def test_a_correct_history_has_no_violations():
    assert Case().broken() == set()


def test_every_rule_has_a_history_that_breaks_it():
    assert RED.keys() == RULES.keys()


@pytest.mark.parametrize(("rule", "edit"), [(rule, edit) for rule, edits in RED.items() for edit in edits])
def test_violations(rule: str, edit: Edit):
    case = Case()
    edit(case)
    assert rule in case.broken()


def emptied_by_retention(case: Case) -> None:
    for offset in range(3):
        del case.state.log[PARTITION, offset]
    case.state.heads[PARTITION] = Head("orders", "p", 3, 2)


def an_ack_with_unknown_outcome(case: Case) -> None:
    """The ack may have been executed or not: the message may be delivered again."""
    case.change("acks", 0, outcome="unknown", returned=float("inf"))
    case.deliver("g", 5, 0, 1, 2)
    case.ack(6, 0, 1, 2)


def delivered_again_after_a_rejected_ack(case: Case) -> None:
    case.change("acks", 0, outcome="refused")
    case.deliver("g", 5, 0, 1, 2)
    case.ack(6, 0, 1, 2)


def pushed_again_after_an_unknown_outcome(case: Case) -> None:
    push = case.history.pushes[1]
    case.history.pushes.insert(0, replace(push, outcome="unknown", returned=float("inf"), locations=()))


def stored_with_unknown_outcome(case: Case) -> None:
    case.change("pushes", 1, outcome="unknown", locations=())


def a_batch_failed_in_part(case: Case) -> None:
    case.fail(1)


def dead_after_too_many_attempts(case: Case) -> None:
    case.fail(1)
    case.change("acks", 2, kind="released")
    case.state.dead_letters = [DeadLetter("g", (PARTITION, 1), 3)]


def a_redriven_copy(case: Case) -> None:
    case.fail(1)
    copy = content("b", "p (redriven for g)", headers={REDRIVEN: {}})
    case.state.heads[9] = Head("orders", copy.partition, 0, 0, "g")
    case.state.log[9, 0] = copy
    case.state.cursors["g", 9] = 1
    case.state.redriven = 1
    case.history.pops.append(Pop("c9", "g", "orders", 5, 5.1, "ok", "L5", (Message((9, 0), copy),)))
    case.history.acks.append(Ack("c9", "g", "L5", "completed", ((9, 0),), 6, 6.1, "ok"))


def a_group_was_moved_back(case: Case) -> None:
    case.history.seeks.append(Seek("g", "orders", 4, 4.1))
    case.deliver("g", 5, 0, 1, 2)
    case.ack(6, 0, 1, 2)
    case.history.samples.append(Sample(4.2, {PARTITION: (0, 2)}, {("g", PARTITION): (0, 0)}))


def a_lease_was_extended(case: Case) -> None:
    case.ack(2, 0, 1, 2, lease="L1", kind="extended")
    case.change("acks", 0, invoked=5.0, returned=5.1)


def auto_ack_with_a_lost_response(case: Case) -> None:
    case.change("pops", 2, outcome="unknown", messages=(), batch=3)


def deleted_by_a_hard_limit(case: Case) -> None:
    case.setup = Setup((replace(SETUP.queues[0], options={"max_size": 0}), *SETUP.queues[1:]))
    missed_by_retention(case)


def several_at_once_where_a_queue_allows_it(case: Case) -> None:
    case.setup = Setup((replace(SETUP.queues[0], concurrency=2), *SETUP.queues[1:]))
    case.change("acks", 0, locations=((PARTITION, 0), (PARTITION, 1)))
    case.change("pops", 0, messages=case.history.pops[0].messages[:2])
    case.deliver("g", 1.2, 2)
    case.ack(1.9, 2)


def a_crowd_in_order(case: Case) -> None:
    case.crowd((0, 5), (5, 10))


GREEN: list[Edit] = [
    a_crowd_in_order,
    emptied_by_retention,
    an_ack_with_unknown_outcome,
    delivered_again_after_a_rejected_ack,
    pushed_again_after_an_unknown_outcome,
    stored_with_unknown_outcome,
    a_batch_failed_in_part,
    dead_after_too_many_attempts,
    a_redriven_copy,
    a_group_was_moved_back,
    a_lease_was_extended,
    auto_ack_with_a_lost_response,
    deleted_by_a_hard_limit,
    several_at_once_where_a_queue_allows_it,
]


@pytest.mark.parametrize("edit", GREEN)
def test_no_violations(edit: Edit):
    case = Case()
    edit(case)
    assert case.broken() == set()


def test_a_setting_that_allows_losses_before_a_crash():
    """Messages that were accepted just before the crash may be lost; earlier ones may not."""
    case = Case()
    case.setup = replace(SETUP, loses=0.6)
    case.history.injections = [Injection("kill-postmaster", 10.0, 11.0)]
    case.history.pushes.append(Push("p", "orders", (content("late"),), 9.7, 9.8, "ok", ((PARTITION, 3),)))
    assert case.broken() == set()
    case.history.pushes.append(Push("p", "orders", (content("early"),), 9.0, 9.1, "ok", ((PARTITION, 4),)))
    assert case.broken() == {"accepted messages are stored"}


def test_the_timeline_of_a_message():
    case = Case()
    again_after_its_ack(case)
    case.history.injections = [Injection("kill-server", 1.5, 1.6, "server-1")]
    (violation,) = [v for v in check(case.setup, case.history, case.state) if v.rule == "no delivery after the ack"]
    text = "\n".join(timeline(Index(case.setup, case.history, case.state), violation))
    for words in (
        "p pushes a",
        "c1 gets it for g, attempt 1",
        "-- kill-server begins",
        "c1: ok",
        "c9 gets it for g",
    ):
        assert words in text
    assert "orders/p offset 0: a" in text
