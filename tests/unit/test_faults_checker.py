"""The rules of the faults suite, on histories made by hand: each is green on a sound one and red on a broken one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from faults.checker import RULES, Index, check
from faults.history import REDRIVEN, Ack, Content, Harm, History, Message, Pop, Push, Run, Sample, Seek
from faults.life import life
from faults.state import DeadLetter, Head, Queue, Setup, State

PARTITION = 7
SETUP = Setup((Queue("orders", ("g", "transform"), ("auto",), retry_limit=2), Queue("derived")))
DERIVED = 8


def content(value: str, partition: str = "p", **more: Any) -> Content:
    return Content(partition, {"v": value}, **more)


class Story:
    """Three messages: pushed at 0, delivered to two groups at 1, acknowledged at 2; `a` is of the outbox."""

    def __init__(self) -> None:
        self.setup = SETUP
        values = ("a", "b", "c")
        places = tuple((PARTITION, n) for n in range(3))
        messages = tuple(Message(place, content(value)) for place, value in zip(places, values, strict=True))
        made = tuple(f"{value} made new" for value in values)
        self.history = History(
            pushes=[
                Push("p", "orders", (content("a"),), 0, 0.1, "ok", outbox=True),
                Push("p", "orders", (content("b"), content("c")), 0, 0.1, "ok", places[1:]),
                Push("t", "derived", tuple(content(value) for value in made), 2, 2.1, "ok"),
            ],
            pops=[
                Pop("c1", "g", "orders", 1, 1.1, "ok", "L1", messages, lease_time=2),
                Pop("t", "transform", "orders", 1, 1.1, "ok", "T1", messages, lease_time=2),
                Pop("au", "auto", "orders", 1, 1.1, "ok", "A1", messages, auto=True),
            ],
            acks=[
                Ack("c1", "g", "L1", "completed", places, 2, 2.1, "ok"),
                Ack("t", "transform", "T1", "completed", places, 2, 2.1, "ok"),
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
        self.state.log |= {place: content(value) for place, value in zip(places, values, strict=True)}

    def broken(self) -> set[str]:
        return {violation.rule for violation in check(self.setup, self.history, self.state)}

    def change(self, what: str, number: int, **changes: Any) -> None:
        events = getattr(self.history, what)
        events[number] = replace(events[number], **changes)

    def deliver(self, group: str, at: float, *offsets: int, lease: str = "L9") -> None:
        messages = tuple(Message((PARTITION, offset), content("abc"[offset])) for offset in offsets)
        self.history.pops.append(Pop("c9", group, "orders", at, at + 0.1, "ok", lease, messages))

    def ack(self, at: float, *offsets: int, lease: str = "L9", kind: Any = "completed", outcome: Any = "ok") -> None:
        places = tuple((PARTITION, offset) for offset in offsets)
        self.history.acks.append(Ack("c9", "g", lease, kind, places, at, at + 0.1, outcome))

    def fail(self, *offsets: int) -> None:
        """Group g refuses these instead of completing them, and they are dead letters."""
        self.change("acks", 0, places=tuple((PARTITION, n) for n in range(3) if n not in offsets))
        self.ack(2, *offsets, lease="L1", kind="failed")
        self.state.dead_letters = [DeadLetter("g", (PARTITION, offset), 1) for offset in offsets]

    def crowd(self, *done: tuple[int, int], last: int = 9, cursor: int = 10) -> None:
        """A partition of the crowd, delivered and done in these ranges, one after the other."""
        for number, (first, end) in enumerate(done):
            run = Run("m", "many", f"R{number}", ((99, first, end),), 10 + number, 10.2 + number, "ok")
            self.history.runs.append(run)
            self.history.done_runs.append(replace(run, invoked=run.told + 0.1, told=run.told + 0.2))
        self.state.crowd = {99: (last, cursor)}


Edit = Callable[[Story], None]


def two_values(story: Story) -> None:
    story.state.log[PARTITION, 1] = content("x")


def two_rows_at_a_place(story: Story) -> None:
    story.state.doubled = [(PARTITION, 1, content("x"))]


def another_payload(story: Story) -> None:
    story.change("pops", 0, messages=(Message((PARTITION, 0), Content("p", {"v": "a", "more": 1})), *_rest(story)))


def without_headers(story: Story) -> None:
    story.change("pushes", 0, items=(content("a", headers={"of": "a"}),))


def another_transaction_id(story: Story) -> None:
    story.change("pops", 0, messages=(Message((PARTITION, 0), content("a", transaction_id="t")), *_rest(story)))


def in_another_partition_at_delivery(story: Story) -> None:
    story.change("pops", 0, messages=(Message((PARTITION, 0), content("a", "elsewhere")), *_rest(story)))


def another_payload_of_a_dead_letter(story: Story) -> None:
    story.fail(1)
    story.state.dead_letters = [DeadLetter("g", (PARTITION, 1), 1, Content("p", {"v": "b", "more": 1}))]


def _rest(story: Story) -> tuple[Message, ...]:
    return story.history.pops[0].messages[1:]


def stored_twice(story: Story) -> None:
    story.state.log[PARTITION, 3] = content("b")
    story.state.heads[PARTITION] = Head("orders", "p", 0, 3)


def a_gap(story: Story) -> None:
    del story.state.log[PARTITION, 1]


def beyond_the_end(story: Story) -> None:
    story.state.heads[PARTITION] = Head("orders", "p", 0, 1)


def from_nowhere(story: Story) -> None:
    del story.history.pushes[0]


def stored_though_it_failed(story: Story) -> None:
    story.change("pushes", 0, outcome="failed")


def not_there(story: Story) -> None:
    story.history.pushes.append(Push("p", "orders", (content("z"),), 0, 0.1, "ok"))


def not_where_it_was_said(story: Story) -> None:
    story.change("pushes", 1, places=((PARTITION, 2), (PARTITION, 1)))


def in_another_partition(story: Story) -> None:
    story.change("pushes", 1, items=(content("b"), content("c", "elsewhere")))


def never_delivered(story: Story) -> None:
    pop = story.history.pops[0]
    story.change("pops", 0, messages=pop.messages[:2])
    story.change("acks", 0, places=((PARTITION, 0), (PARTITION, 1)))


def never_delivered_and_the_cursor_stands_still(story: Story) -> None:
    """What a group has to get is what was pushed, wherever the database says that the group begins or is."""
    never_delivered(story)
    story.state.cursors["g", PARTITION] = 0


def skipped_at_the_beginning(story: Story) -> None:
    story.change("pops", 0, messages=_rest(story))
    story.change("acks", 0, places=((PARTITION, 1), (PARTITION, 2)))


def never_completed(story: Story) -> None:
    story.change("acks", 0, outcome="refused")


def lag_is_left(story: Story) -> None:
    story.state.cursors["g", PARTITION] = 2


def a_lease_is_left(story: Story) -> None:
    story.state.leases = 1


def out_of_order(story: Story) -> None:
    story.deliver("g", 1.2, 2)  # while 0 and 1 were not acknowledged


def not_ascending(story: Story) -> None:
    story.change("pops", 0, messages=story.history.pops[0].messages[::-1])


def again_after_its_ack(story: Story) -> None:
    story.deliver("g", 5, 0)


def completed_twice(story: Story) -> None:
    story.change("acks", 0, told=9.0)
    story.deliver("g", 4.5, 0)
    story.ack(5, 0)


def auto_ack_twice(story: Story) -> None:
    story.deliver("auto", 5, 0)


def auto_ack_never(story: Story) -> None:
    del story.history.pops[2]


def one_lost_answer_does_not_explain_more_than_its_batch(story: Story) -> None:
    story.change("pops", 2, outcome="unknown", messages=(), batch=2)


def a_pop_that_failed_explains_nothing(story: Story) -> None:
    story.change("pops", 2, outcome="failed", messages=(), batch=3)


def a_lost_answer_does_not_explain_what_was_passed_before(story: Story) -> None:
    """Offset 1 comes before the pop with the lost answer begins: so that one cannot have had offset 0."""
    story.change("pops", 2, messages=_rest(story))
    story.history.pops.append(Pop("au", "auto", "orders", 2, 3, "unknown", auto=True, batch=3))


def two_leases(story: Story) -> None:
    story.deliver("g", 1.2, 2)
    story.ack(1.9, 2)


def stale_ack(story: Story) -> None:
    story.deliver("g", 1.2, 0)  # c9 has it before c1 acks


def late_ack(story: Story) -> None:
    story.change("acks", 0, invoked=9.0, told=9.1)


def cursor_goes_back(story: Story) -> None:
    story.history.samples.append(Sample(4.0, {PARTITION: (0, 2)}, {("g", PARTITION): (2, 0)}))


def two_leases_in_a_sample(story: Story) -> None:
    story.history.samples.append(Sample(4.0, {PARTITION: (0, 2)}, {("g", PARTITION): (3, 2)}))


def deleted_too_early(story: Story) -> None:
    """The cursor is past it, but nobody has acknowledged it yet."""
    story.history.samples.insert(0, Sample(0.5, {PARTITION: (2, 2)}, {("g", PARTITION): (3, 0)}))


def missed_by_retention(story: Story) -> None:
    never_delivered(story)
    story.state.missed = [("g", PARTITION, 2, 3)]


def missed_within_the_limit(story: Story) -> None:
    """Three messages, and a limit of two: the last of them may not be deleted."""
    a_hard_limit_took_it(story)
    story.setup = Setup((replace(SETUP.queues[0], options={"max_size": 2}), *SETUP.queues[1:]))


def deleted_while_leased(story: Story) -> None:
    story.history.samples.append(Sample(1.5, {PARTITION: (1, 2)}, {}))


def made_twice(story: Story) -> None:
    story.state.log[DERIVED, 3] = content("a made new")
    story.state.heads[DERIVED] = Head("derived", "p", 0, 3)


def not_made(story: Story) -> None:
    del story.state.log[DERIVED, 2]
    story.state.heads[DERIVED] = Head("derived", "p", 0, 1)
    story.change("pushes", 2, items=story.history.pushes[2].items[:2])


def row_without_message(story: Story) -> None:
    story.state.rows.add("z")


def message_without_row(story: Story) -> None:
    story.state.rows.clear()


def dead_twice(story: Story) -> None:
    story.fail(1)
    story.state.dead_letters *= 2


def dead_and_completed(story: Story) -> None:
    story.fail(1)
    story.change("acks", 0, places=((PARTITION, 0), (PARTITION, 1), (PARTITION, 2)))


def dead_for_no_reason(story: Story) -> None:
    story.fail(1)
    story.change("acks", 2, kind="released")


def driven_again_twice(story: Story) -> None:
    a_copy_was_driven_again(story)
    story.state.redriven = 2


def poison_completed(story: Story) -> None:
    story.history.pushes[0] = Push("p", "orders", (content("a!fail"),), 0, 0.1, "ok")
    story.state.log[PARTITION, 0] = content("a!fail")
    for number, pop in enumerate(story.history.pops):
        story.change("pops", number, messages=(Message((PARTITION, 0), content("a!fail")), *pop.messages[1:]))


def log_is_not_whole(story: Story) -> None:
    story.state.broken = {"cursors count their leases": 1}


def connections_are_left(story: Story) -> None:
    story.state.connections = 47


def a_transaction_is_left(story: Story) -> None:
    story.state.in_transaction = 1


def dead_tuples_are_left(story: Story) -> None:
    story.state.dead_tuples = 10_000


def memory_has_grown(story: Story) -> None:
    story.state.memory = {"server": (50, 500)}


def crowd_with_a_gap(story: Story) -> None:
    story.crowd((0, 3), (5, 10))


def crowd_left_behind(story: Story) -> None:
    story.crowd((0, 5), cursor=5)


def crowd_lost_when_it_was_pushed(story: Story) -> None:
    story.crowd((0, 10))
    story.history.filled = 11


def crowd_twice(story: Story) -> None:
    story.crowd((0, 6), (5, 10))


def crowd_again(story: Story) -> None:
    story.crowd((0, 10))
    story.history.runs.append(Run("n", "many", "R9", ((99, 4, 5),), 20, 20.1, "ok"))


def crowd_out_of_order(story: Story) -> None:
    story.crowd((5, 10), (0, 5))


RED: dict[str, list[Edit]] = {
    "one value at a place": [two_values, two_rows_at_a_place],
    "a message stays as it was pushed": [
        another_payload,
        without_headers,
        another_transaction_id,
        in_another_partition_at_delivery,
        another_payload_of_a_dead_letter,
    ],
    "a value is stored once": [stored_twice],
    "offsets are dense": [a_gap, beyond_the_end],
    "nothing from nowhere": [from_nowhere, stored_though_it_failed],
    "what was accepted is there": [not_there, not_where_it_was_said, in_another_partition],
    "every group gets everything": [
        never_delivered,
        never_delivered_and_the_cursor_stands_still,
        skipped_at_the_beginning,
        never_completed,
    ],
    "lag returns to zero": [lag_is_left, a_lease_is_left],
    "in order": [out_of_order, not_ascending],
    "nothing again after its ack": [again_after_its_ack, completed_twice],
    "at most once with auto_ack": [
        auto_ack_twice,
        auto_ack_never,
        one_lost_answer_does_not_explain_more_than_its_batch,
        a_pop_that_failed_explains_nothing,
        a_lost_answer_does_not_explain_what_was_passed_before,
    ],
    "one lease at a time": [two_leases],
    "a stale ack is refused": [stale_ack, late_ack],
    "cursors only go forward": [cursor_goes_back, two_leases_in_a_sample],
    "retention keeps what a group has to do": [deleted_too_early, missed_by_retention, missed_within_the_limit],
    "retention keeps what is leased": [deleted_while_leased],
    "both or none": [made_twice, not_made, row_without_message, message_without_row],
    "dead letters are accounted for": [
        dead_twice,
        dead_and_completed,
        dead_for_no_reason,
        driven_again_twice,
        poison_completed,
    ],
    "the log is whole": [log_is_not_whole],
    "a crowd of partitions gets everything": [crowd_with_a_gap, crowd_left_behind, crowd_lost_when_it_was_pushed],
    "a crowd of partitions gets nothing twice": [crowd_twice, crowd_again],
    "a crowd of partitions is in order": [crowd_out_of_order],
    "everything returns to its baseline": [
        connections_are_left,
        a_transaction_is_left,
        dead_tuples_are_left,
        memory_has_grown,
    ],
}


def test_a_sound_story_is_green():
    assert Story().broken() == set()


def test_every_rule_has_a_story_that_breaks_it():
    assert RED.keys() == RULES.keys()


@pytest.mark.parametrize(("rule", "edit"), [(rule, edit) for rule, edits in RED.items() for edit in edits])
def test_red(rule: str, edit: Edit):
    story = Story()
    edit(story)
    assert rule in story.broken()


def retention_has_emptied_it(story: Story) -> None:
    for offset in range(3):
        del story.state.log[PARTITION, offset]
    story.state.heads[PARTITION] = Head("orders", "p", 3, 2)


def nobody_knows_of_an_ack(story: Story) -> None:
    """It may have counted or not: the message may come again."""
    story.change("acks", 0, outcome="unknown", told=float("inf"))
    story.deliver("g", 5, 0, 1, 2)
    story.ack(6, 0, 1, 2)


def an_ack_was_refused_and_it_came_again(story: Story) -> None:
    story.change("acks", 0, outcome="refused")
    story.deliver("g", 5, 0, 1, 2)
    story.ack(6, 0, 1, 2)


def pushed_again_because_nobody_knew(story: Story) -> None:
    push = story.history.pushes[1]
    story.history.pushes.insert(0, replace(push, outcome="unknown", told=float("inf"), places=()))


def stored_though_nobody_knew(story: Story) -> None:
    story.change("pushes", 1, outcome="unknown", places=())


def a_batch_failed_in_part(story: Story) -> None:
    story.fail(1)


def given_up_after_too_many_attempts(story: Story) -> None:
    story.fail(1)
    story.change("acks", 2, kind="released")
    story.state.dead_letters = [DeadLetter("g", (PARTITION, 1), 3)]


def a_copy_was_driven_again(story: Story) -> None:
    story.fail(1)
    copy = content("b", "p (redriven for g)", headers={REDRIVEN: {}})
    story.state.heads[9] = Head("orders", copy.partition, 0, 0, "g")
    story.state.log[9, 0] = copy
    story.state.cursors["g", 9] = 1
    story.state.redriven = 1
    story.history.pops.append(Pop("c9", "g", "orders", 5, 5.1, "ok", "L5", (Message((9, 0), copy),)))
    story.history.acks.append(Ack("c9", "g", "L5", "completed", ((9, 0),), 6, 6.1, "ok"))


def a_group_was_moved_back(story: Story) -> None:
    story.history.seeks.append(Seek("g", "orders", 4, 4.1))
    story.deliver("g", 5, 0, 1, 2)
    story.ack(6, 0, 1, 2)
    story.history.samples.append(Sample(4.2, {PARTITION: (0, 2)}, {("g", PARTITION): (0, 0)}))


def a_lease_was_extended(story: Story) -> None:
    story.ack(2, 0, 1, 2, lease="L1", kind="extended")
    story.change("acks", 0, invoked=5.0, told=5.1)


def auto_ack_with_an_answer_that_was_lost(story: Story) -> None:
    story.change("pops", 2, outcome="unknown", messages=(), batch=3)


def a_hard_limit_took_it(story: Story) -> None:
    story.setup = Setup((replace(SETUP.queues[0], options={"max_size": 0}), *SETUP.queues[1:]))
    missed_by_retention(story)


def several_at_once_where_a_queue_allows_it(story: Story) -> None:
    story.setup = Setup((replace(SETUP.queues[0], concurrency=2), *SETUP.queues[1:]))
    story.change("acks", 0, places=((PARTITION, 0), (PARTITION, 1)))
    story.change("pops", 0, messages=story.history.pops[0].messages[:2])
    story.deliver("g", 1.2, 2)
    story.ack(1.9, 2)


def a_crowd_in_order(story: Story) -> None:
    story.crowd((0, 5), (5, 10))


GREEN: list[Edit] = [
    a_crowd_in_order,
    retention_has_emptied_it,
    nobody_knows_of_an_ack,
    an_ack_was_refused_and_it_came_again,
    pushed_again_because_nobody_knew,
    stored_though_nobody_knew,
    a_batch_failed_in_part,
    given_up_after_too_many_attempts,
    a_copy_was_driven_again,
    a_group_was_moved_back,
    a_lease_was_extended,
    auto_ack_with_an_answer_that_was_lost,
    a_hard_limit_took_it,
    several_at_once_where_a_queue_allows_it,
]


@pytest.mark.parametrize("edit", GREEN)
def test_green(edit: Edit):
    story = Story()
    edit(story)
    assert story.broken() == set()


def test_a_setting_that_may_lose_the_last_moments_is_held_to_them():
    """What was accepted just before the crash may be gone; what was accepted earlier may not."""
    story = Story()
    story.setup = replace(SETUP, loses=0.6)
    story.history.harms = [Harm("kill-postmaster", 10.0, 11.0)]
    story.history.pushes.append(Push("p", "orders", (content("late"),), 9.7, 9.8, "ok", ((PARTITION, 3),)))
    assert story.broken() == set()
    story.history.pushes.append(Push("p", "orders", (content("early"),), 9.0, 9.1, "ok", ((PARTITION, 4),)))
    assert story.broken() == {"what was accepted is there"}


def test_the_life_of_a_message_is_told():
    story = Story()
    again_after_its_ack(story)
    story.history.harms = [Harm("kill-server", 1.5, 1.6, "server-1")]
    (violation,) = [v for v in check(story.setup, story.history, story.state) if v.rule.startswith("nothing again")]
    told = "\n".join(life(Index(story.setup, story.history, story.state), violation))
    for words in (
        "p pushes a",
        "c1 has it for g, attempt 1",
        "-- kill-server begins",
        "c1 is told ok",
        "c9 has it for g",
    ):
        assert words in told
    assert "orders/p offset 0: a" in told
