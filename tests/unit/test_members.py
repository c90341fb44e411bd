"""Who consumes here: seen when he pops, forgotten when he does not."""

import pytest

from skep.server.http import members
from skep.server.http.members import Members


def test_a_member_comes_waits_and_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(members.time, "time", lambda: now)
    known = Members()
    with known.of("q", "g", "10.0.0.1", "ann") as member:
        member.messages += 5
        now += 1000
        assert [(each.address, each.waiting, each.messages) for each in known.here()] == [("10.0.0.1", 1, 5)]
    assert known.of("q", "g", "10.0.0.1", "ann") is member
    now += members.FORGET - 1
    assert [(each.waiting, each.since, each.seen) for each in known.here()] == [(0, 1000, 2000)]
    now += 2
    assert known.here() == []


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "ROOM", 3)
    known = Members()
    for number in range(10):
        with known.of("q", "g", str(number), None):
            pass
    assert [each.address for each in known.here()] == ["7", "8", "9"]
