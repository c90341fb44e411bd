"""Rules for the end of a round."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation

DEAD_TUPLES = 100  # that samples of servers may leave between VACUUM and the count
GROWTH_MB = 100  # of a server, for larger pools and memory that Python does not return


def whole(index: Index) -> Iterator[Violation]:
    """`check_consistency()` finds no violation."""
    for invariant, count in index.state.broken.items():
        yield Violation(f"{invariant}: broken {count} times")


def returned(index: Index) -> Iterator[Violation]:
    """Connections, dead tuples and memory return to normal."""
    state = index.state
    if state.connections > state.most_connections:
        yield Violation(f"{state.connections} connections are open; the servers have {state.most_connections} at most")
    if state.in_transaction:
        yield Violation(f"{state.in_transaction} connections are idle in a transaction")
    if state.dead_tuples > DEAD_TUPLES:
        yield Violation(f"{state.dead_tuples} dead tuples cannot be removed, because of an old snapshot")
    for server, (before, after) in state.memory.items():
        if after > before + GROWTH_MB:
            yield Violation(f"{server} has grown from {before:.0f} to {after:.0f} MB")
