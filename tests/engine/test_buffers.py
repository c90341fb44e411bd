"""The cost of the hot path in buffers, compared to buffers.json, so that no call becomes more expensive unnoticed."""

import json

import pytest

from tests.engine import buffers
from tests.engine.servers import server
from tests.postgres_binaries import MAJORS

WITHIN = 0.10
HOW = "If that is meant, run `.venv/bin/python -m tests.engine.buffers`, which writes tests/engine/buffers.json."


@pytest.mark.parametrize("major", MAJORS)
def test_no_call_costs_more_than_it_did(major: int):
    with server(major, {"autovacuum": "off", "jit": "off"}) as url:
        measured = buffers.measure(url)
    expected = json.loads(buffers.EXPECTED.read_text())[str(major)]
    changed = {
        name: f"{measured.get(name)} buffers, expected {expected.get(name)}"
        for name in measured.keys() | expected.keys()
        if abs(measured.get(name, 0) - expected.get(name, 0)) > max(WITHIN * expected.get(name, 0), 1)
    }
    assert changed == {}, HOW
