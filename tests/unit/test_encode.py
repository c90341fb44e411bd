"""Encoding of messages as JSON, and errors that name the item."""

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.client.encode import as_object, describe, dumps
from skep.errors import InvalidArgument
from skep.message import NewMessage

ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def nested(depth: int, inner: Any = None) -> Any:
    value = inner
    for _ in range(depth):
        value = [value]
    return value


def circle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@dataclass
class Order:
    number: int


BAD = {
    "nan": (math.nan, "Out of range"),
    "infinity": ({"a": [1, -math.inf]}, "Out of range"),
    "nul": ("a\0b", "NUL"),
    "nul inside": ({"a": [{"b": "\0"}]}, "NUL"),
    "nul in a key": ({"\0": 1}, "NUL"),
    "nul in a tuple": (("a", ("\0",)), "NUL"),
    "lone surrogate": ("\ud800", "surrogates"),
    "lone surrogate in a key": ({"\udfff": 1}, "surrogates"),
    "set": ({"tags": {1, 2}}, "set cannot be encoded as JSON"),
    "bytes": (b"abc", "bytes cannot be encoded"),
    "datetime": (datetime(2026, 1, 31, tzinfo=UTC), "datetime cannot be encoded"),
    "decimal": (Decimal("1.5"), "Decimal cannot be encoded"),
    "path": (Path("a"), "Path cannot be encoded"),
    "dataclass": (Order(1), "Order cannot be encoded"),
    "mapping": (MappingProxyType({"a": 1}), "mappingproxy cannot be encoded"),
    "class": (Order, "type cannot be encoded"),
    "tuple as a key": ({(1, 2): 3}, "keys must be str"),
    "bytes as a key": ({b"a": 1}, "keys must be str"),
    "too deep": (nested(100_000), "recursion"),
    "nul very deep": (nested(900, "\0"), "NUL"),
    "circle": (circle(), "Circular"),
    "huge number": (10**5000, "4300 digits"),
}


@pytest.mark.parametrize(("payload", "says"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("place", [0, 2])
def test_an_invalid_payload_is_refused_with_its_index(payload: Any, says: str, place: int):
    items: list[object] = [as_object("q", {"fine": "\\u0000"}, None) for _ in range(3)]
    items[place] = as_object("q", NewMessage(payload), None)
    with pytest.raises(InvalidArgument) as caught:
        dumps(items)
    assert caught.value.message.startswith(f"item {place}: ")
    assert says in caught.value.message
    assert "JSON" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "message",
    [
        NewMessage(1, partition="a\0b"),
        NewMessage(1, transaction_id="\0"),
        NewMessage(1, headers={"a": "\0"}),
        NewMessage(1, trace_id="\0"),
        NewMessage(1, headers={"a": {1}}),
        NewMessage(1, headers={"a": "\ud800"}),
    ],
)
def test_other_invalid_fields_are_refused_with_their_index(message: NewMessage):
    with pytest.raises(InvalidArgument, match="item 1: "):
        dumps([as_object("q", 0, None), as_object("q", message, None)])
    with pytest.raises(InvalidArgument, match="item 0: "):
        dumps([as_object("q", 0, "producer\0")])


@pytest.mark.parametrize("headers", [[1], "text", 7, [("a", 1)]])
def test_headers_that_are_not_a_mapping_are_refused_by_the_database(headers: Any):
    """The error of the database names the item."""
    item = as_object("q", NewMessage(1, headers=headers), None)
    assert json.loads(dumps([item]))[0]["headers"] == json.loads(json.dumps(headers))


def test_an_escaped_backslash_before_u0000_is_not_a_nul():
    assert json.loads(dumps(["\\u0000", "\\\\u0000"])) == ["\\u0000", "\\\\u0000"]


def test_fields_with_their_default_are_omitted():
    assert as_object("q", NewMessage(None), None) == as_object("q", None, None) == {"queue": "q", "payload": None}
    assert as_object("q", NewMessage(None), "me") == as_object("q", None, "me")


def test_other_fields_are_sent():
    message = NewMessage({"id": ID}, "partition", "once", OrderedDict(a=1), ID)
    assert json.loads(dumps([as_object("q", message, "me")])) == [
        {
            "queue": "q",
            "payload": {"id": str(ID)},
            "partition": "partition",
            "transaction_id": "once",
            "headers": {"a": 1},
            "trace_id": str(ID),
            "producer": "me",
        }
    ]


def test_text_is_sent_as_it_is():
    assert dumps(["ä€🐝\n", [1.5, True]]) == '["ä€🐝\\n",[1.5,true]]'


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(json_values, max_size=3))
def test_json_values_are_unchanged(items: list[Any]):
    text = dumps(items)
    assert json.loads(text) == items
    assert "\n" not in text


@given(st.lists(st.text() | st.lists(st.text(), max_size=2), min_size=1, max_size=4))
def test_any_text_is_sent_or_refused_with_its_index(items: list[Any]):
    bad = [number for number, item in enumerate(items) if any(map(cannot_be_sent, item))]
    if bad:
        with pytest.raises(InvalidArgument, match=f"item ({'|'.join(map(str, bad))}): "):
            dumps(items)
    else:
        assert json.loads(dumps(items)) == items


def cannot_be_sent(text: str) -> bool:
    return any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


class Silent(Exception):
    """An exception whose __str__ is broken."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (KeyError("id"), "KeyError: 'id'"),
        (ValueError(), "ValueError"),
        ("plain text", "plain text"),
        (404, "404"),
        ("a\0b", "ab"),
        ("\ud800", "?"),
        ("x" * 20_000, "x" * 10_000),
        (Silent(), "Silent"),
        (Mute(), "Mute"),
    ],
)
def test_any_error_has_a_text_that_can_be_stored(error: object, text: str):
    assert describe(error) == text
