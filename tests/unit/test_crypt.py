"""Sealed payloads: what opens them, and what does not."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.errors import ConfigError, Undecipherable
from skep.server.work.crypt import HEADER, Keyring, is_sealed

OLD, NEW = "0f" * 32, "e1" * 32
RING = Keyring.load(f"k2:{NEW},k1:{OLD}")
SECRET = b'{"card":"4111"}'


def sealed(ring: Keyring = RING, queue: str = "orders") -> tuple[dict[str, str], dict[str, Any]]:
    stored, headers = ring.seal(SECRET, queue)
    return json.loads(stored), headers[HEADER]


@given(payload=st.binary(max_size=200), queue=st.text(max_size=20))
def test_what_is_sealed_opens(payload: bytes, queue: str):
    stored, headers = RING.seal(payload, queue)
    assert RING.open(stored, headers[HEADER]) == payload
    assert RING.open(json.loads(stored), headers[HEADER]) == payload


def test_it_is_stored_as_queen_does():
    stored, seal = sealed()
    assert set(stored) == {"encrypted", "iv", "authTag"}
    sizes = {name: len(base64.b64decode(part)) for name, part in stored.items()}
    assert sizes == {"encrypted": len(SECRET), "iv": 16, "authTag": 16}
    assert seal == {"key": "k2", "queue": "orders"}
    assert "4111" not in json.dumps(stored)


def test_no_two_are_the_same():
    assert len({sealed()[0]["iv"] for _ in range(100)}) == 100
    assert sealed()[0]["encrypted"] != sealed()[0]["encrypted"]


def test_an_old_key_still_opens():
    stored, seal = sealed(Keyring.load(f"k1:{OLD}"))
    assert seal["key"] == "k1"
    assert RING.open(stored, seal) == SECRET


def test_a_key_that_is_gone_is_named():
    stored, seal = sealed()
    with pytest.raises(Undecipherable, match='no key "k2"') as caught:
        Keyring.load(f"k1:{OLD}").open(stored, seal)
    assert (caught.value.key, caught.value.retryable) == ("k2", False)


def test_another_key_of_the_same_name_does_not_open():
    stored, seal = sealed(Keyring.load(f"k1:{NEW}"))
    with pytest.raises(Undecipherable, match="damaged"):
        RING.open(stored, seal)


@pytest.mark.parametrize("part", ["encrypted", "iv", "authTag"])
def test_a_changed_bit_does_not_open(part: str):
    stored, seal = sealed()
    changed = bytearray(base64.b64decode(stored[part]))
    changed[-1] ^= 1
    with pytest.raises(Undecipherable, match='"k2" is damaged') as caught:
        RING.open(stored | {part: base64.b64encode(changed).decode()}, seal)
    shown = f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"
    assert [secret for secret in ("4111", OLD, NEW) if secret in shown] == []


@pytest.mark.parametrize("change", [{"queue": "mail"}, {"key": "k1"}, {"queue": ""}])
def test_a_seal_of_another_queue_or_key_does_not_open(change: dict[str, str]):
    stored, seal = sealed()
    with pytest.raises(Undecipherable):
        RING.open(stored, seal | change)


def test_the_id_of_a_key_is_sealed_too():
    ring = Keyring.load(f"a:{NEW},b:{NEW}")
    stored, seal = sealed(ring)
    with pytest.raises(Undecipherable):
        ring.open(stored, seal | {"key": "b"})


def test_key_and_queue_cannot_be_shifted_into_one_another():
    """A NUL in the name of a queue does not make it look like another key's."""
    ring = Keyring.load(f"a:{NEW},a.b:{NEW}")
    stored, seal = ring.seal(SECRET, "b\0orders")
    with pytest.raises(Undecipherable):
        ring.open(stored, {"key": "a.b", "queue": "orders"})
    assert ring.open(stored, seal[HEADER]) == SECRET


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b"[" * 100_000,
        {"encrypted": 7, "iv": 7, "authTag": 7},
        {"encrypted": "", "iv": "", "authTag": ""},
        {"encrypted": "!!", "iv": "AAAA", "authTag": "AAAA"},
        {"encrypted": "é", "iv": "é", "authTag": "é"},
    ],
)
def test_what_was_never_sealed_does_not_open(stored: Any):
    with pytest.raises(Undecipherable):
        RING.open(stored, {"key": "k2", "queue": "orders"})


def test_a_short_tag_does_not_open():
    """A tag of four bytes would be guessed in 2^32 tries."""
    stored, seal = sealed()
    short = base64.b64encode(base64.b64decode(stored["authTag"])[:4]).decode()
    with pytest.raises(Undecipherable):
        RING.open(stored | {"authTag": short}, seal)


@pytest.mark.parametrize("noise", ["!", "\n", "=", "é"])
def test_there_is_one_way_to_write_it(noise: str):
    stored, seal = sealed()
    for part in stored:
        with pytest.raises(Undecipherable):
            RING.open(stored | {part: stored[part][:4] + noise + stored[part][4:]}, seal)
    encrypted, tag = (base64.b64decode(stored[part]) for part in ("encrypted", "authTag"))
    cut = {"encrypted": encrypted[:-1], "authTag": encrypted[-1:] + tag}
    with pytest.raises(Undecipherable):
        RING.open(stored | {name: base64.b64encode(part).decode() for name, part in cut.items()}, seal)


@pytest.mark.parametrize("seal", [None, {}, "k2", {"key": "k2"}, {"key": ["k2"], "queue": "orders"}, {"queue": "x"}])
def test_a_header_that_names_nothing_does_not_open(seal: Any):
    with pytest.raises(Undecipherable):
        RING.open(sealed()[0], seal)


def test_without_keys_nothing_is_stored_in_the_open():
    assert not Keyring.load(None)
    assert not Keyring.load("")
    with pytest.raises(ConfigError, match='queue "orders" is encrypted, but SKEP_ENCRYPTION_KEYS is not set'):
        Keyring.load(None).seal(SECRET, "orders")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"k2:{NEW},,k1:{OLD}", "key 2"),
        (NEW, "key 1"),
        (f"k1:{NEW[:-1]}", "key 1"),
        (f"k1:{NEW}0", "key 1"),
        (f"k1:{'g' * 64}", "key 1"),
        (f"k 1:{NEW}", "key 1"),
        (f":{NEW}", "key 1"),
        (f"k1\n:{NEW}", "key 1"),
        (f"k1:{NEW},k1:{OLD}", "two keys with the id k1"),
    ],
)
def test_bad_keys_are_refused_without_being_shown(text: str, says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        Keyring.load(text)
    assert caught.value.hint is not None
    assert NEW[:20] not in f"{caught.value.message} {caught.value.hint}"


def test_keys_are_not_shown():
    assert repr(RING) == "Keyring()"


def test_what_is_sealed_is_seen_by_its_header():
    assert is_sealed({HEADER: {}})
    assert not is_sealed({"skep-redriven": {}})
    assert not is_sealed(None)
