"""What roles and grants allow, on one queue, on every queue and somewhere."""

import time
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.errors import Forbidden, InvalidArgument
from skep.server.http.grants import ACTIONS, ANYONE, Action, Grants, Identity, Role


def identity(*roles: Role, **grants: list[str]) -> Identity:
    """Grants by pattern; in the names of patterns `_` is `*`."""
    return Identity("ann", frozenset(roles), Grants.parse({name.replace("_", "*"): a for name, a in grants.items()}))


def allowed(who: Identity, queue: str | None) -> set[Action]:
    return {action for action in get_args(Action) if who.allows(action, queue)}


@pytest.mark.parametrize(
    ("roles", "actions"),
    [
        ([], set()),
        ([Role.READ_ONLY], {"read"}),
        ([Role.WRITE_ONLY], {"push"}),
        ([Role.READ_ONLY, Role.WRITE_ONLY], {"read", "push"}),
        ([Role.READ_WRITE], ACTIONS - {"admin"}),
        ([Role.ADMIN], ACTIONS),
    ],
)
def test_a_role_holds_on_every_queue(roles: list[Role], actions: set[Action]):
    who = identity(*roles)
    assert allowed(who, "orders") == allowed(who, None) == actions
    assert who.visible("orders") == who.allows_somewhere("read") == ("read" in actions)


def test_grants_alone_are_all_there_is():
    who = identity(orders_=["push", "pop"])
    assert allowed(who, "orders.eu") == {"push", "pop"}
    assert allowed(who, "mail") == allowed(who, None) == set()


def test_a_grant_takes_the_place_of_the_role():
    who = identity(Role.READ_WRITE, orders_=["push"], mail=[])
    assert allowed(who, "orders.eu") == {"push"}
    assert allowed(who, "mail") == set()
    assert allowed(who, "else") == ACTIONS - {"admin"}


def test_a_grant_adds():
    who = identity(Role.READ_ONLY, orders=["read", "push"])
    assert allowed(who, "orders") == {"read", "push"}
    assert allowed(who, "orders.eu") == {"read"}


def test_grants_that_match_add_up():
    who = identity(_=["read"], orders_=["push"], _eu=["pop"])
    assert allowed(who, "orders.eu") == {"read", "push", "pop"}
    assert allowed(who, "orders.us") == {"read", "push"}
    assert allowed(who, None) == {"read"}


def test_admin_in_a_grant_is_everything_there():
    who = identity(orders=["admin"])
    assert allowed(who, "orders") == ACTIONS
    assert allowed(who, None) == set()


def test_every_queue_is_every_one():
    assert not identity(Role.READ_WRITE, secret_=["push"]).allows("pop", None)
    assert identity(Role.READ_WRITE, secret_=["push"]).allows("push", None)
    assert not identity(Role.ADMIN, _=["push"]).allows("pop", None)
    assert Identity("a", grants=Grants.parse({"**": ["pop"]})).allows("pop", None)


@pytest.mark.parametrize(
    ("who", "somewhere"),
    [
        (identity(orders=["read"]), True),
        (identity(orders=["push"]), False),
        (identity(Role.READ_ONLY, orders=["push"]), True),
        (identity(Role.READ_ONLY, _=["push"]), False),
        (identity(Role.READ_ONLY, _=["push"], orders=["read"]), True),
        (identity(), False),
    ],
)
def test_lists_are_for_those_who_may_read_something(who: Identity, somewhere: object):
    assert who.allows_somewhere("read") == somewhere


def test_a_list_shows_what_may_be_read():
    who = identity(Role.READ_ONLY, secret_=[], mail=["push"])
    assert [queue for queue in ("orders", "mail", "secret.1") if who.visible(queue)] == ["orders"]


def test_what_is_not_allowed_is_refused_in_queens_words():
    identity(Role.WRITE_ONLY).require("push", "orders")
    with pytest.raises(Forbidden, match="^Insufficient permissions$") as caught:
        identity(Role.WRITE_ONLY).require("pop", "orders")
    assert caught.value.detail == "pop on 'orders'"
    assert allowed(ANYONE, None) == ACTIONS


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["order", "orders2", "Orders", ""]),
        ("*", ["", "a", "a.b", "a\nb"], []),
        ("orders.*", ["orders.", "orders.eu", "orders.eu.1"], ["orders", "xorders.eu"]),
        ("*.eu", [".eu", "orders.eu"], ["orders.us", "orders.eu.1"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("a*b*c", ["abc", "a.b.c", "abcbc"], ["acb", "ab", "ac"]),
        ("ab*ba", ["abba", "ab.ba"], ["aba"]),
        ("a*bc*c", ["abcc"], ["abc"]),
        ("a**b", ["ab", "a.b"], ["a"]),
        ("q?[a-z].+", ["q?[a-z].+"], ["qa", "q?a.+", "q?[a-z]x+"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]):
    grants = Grants.parse({pattern: ["read"]})
    assert [name for name in [*matching, *others] if grants.on(name) is not None] == matching


@given(pattern=st.text("ab*", min_size=1, max_size=8), name=st.text("ab", max_size=10))
def test_patterns_match_like_the_plain_definition(pattern: str, name: str):
    def matches(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(matches(pattern[1:], name[start:]) for start in range(len(name) + 1))
        return name[:1] == pattern[0] and matches(pattern[1:], name[1:])

    assert (Grants.parse({pattern: []}).on(name) is not None) == matches(pattern, name)


def test_a_pattern_cannot_be_made_to_cost_time():
    grants = Grants.parse({"a*" * 127: ["read"]})
    start = time.process_time()
    assert grants.on("a" * 126 + "b" * 129) is None
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize(
    "value",
    [
        None,
        "*",
        ["orders"],
        7,
        {"orders": "push"},
        {"orders": None},
        {"orders": {"push": True}},
        {"orders": ["fly"]},
        {"orders": ["Push"]},
        {"orders": ["push", None]},
        {"orders": [["push"]]},
        {"": ["push"]},
        {"x" * 256: ["push"]},
        {7: ["push"]},
        {f"q{number}": ["push"] for number in range(1001)},
    ],
)
def test_what_is_not_understood_is_refused_not_ignored(value: Any):
    with pytest.raises(InvalidArgument):
        Grants.parse(value)
