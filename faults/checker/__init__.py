"""The checker: rules over the histories and the final state. It does no I/O.

A rule reports only violations that it can prove. A call with an `unknown` outcome may have been executed or not, at any
time after it was invoked; two calls are in order only if one returned before the other was invoked.
"""

from collections.abc import Callable, Iterable, Iterator

from faults.checker import baseline, crowd, dead_letters, deliveries, leases, log, samples, transactions
from faults.checker.index import Index, Violation
from faults.history import History
from faults.state import Setup, State

Rule = Callable[[Index], Iterator[Violation]]

RULES: dict[str, Rule] = {
    "one message at an offset": log.one_value,
    "a message stays as it was pushed": log.unchanged,
    "a message is stored once": log.stored_once,
    "offsets are dense": log.dense,
    "every stored message was pushed": log.from_nowhere,
    "accepted messages are stored": log.accepted,
    "every group completes every message": deliveries.complete,
    "lag returns to zero": deliveries.drained,
    "in order": deliveries.in_order,
    "no delivery after the ack": deliveries.not_again,
    "at most once with auto_ack": deliveries.at_most_once,
    "one lease at a time": leases.one_at_a_time,
    "a stale ack is rejected": leases.stale_refused,
    "cursors only go forward": samples.forward,
    "retention keeps pending messages": samples.pending_is_kept,
    "retention keeps leased messages": samples.leased_is_kept,
    "transactions are atomic": transactions.atomic,
    "dead letters are accounted for": dead_letters.accounted_for,
    "check_consistency() passes": baseline.whole,
    "many partitions: every message is completed": crowd.complete,
    "many partitions: no message is completed twice": crowd.once,
    "many partitions: messages are in order": crowd.in_order,
    "connections, dead tuples and memory return to normal": baseline.returned,
}
LOSING = {  # rules that hold even if a setting allows losses before a crash
    "offsets are dense",
    "lag returns to zero",
    "at most once with auto_ack",
    "a message stays as it was pushed",
    "check_consistency() passes",
    "connections, dead tuples and memory return to normal",
    "accepted messages are stored",
}


def check(setup: Setup, history: History, state: State) -> list[Violation]:
    """Return the violations of all rules."""
    index = Index(setup, history, state)
    chosen: Iterable[str] = LOSING if setup.loses else RULES
    return [violation.named(name) for name in RULES if name in chosen for violation in RULES[name](index)]


__all__ = ["RULES", "Index", "Violation", "check"]
