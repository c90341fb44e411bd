"""Errors raised in SQL arrive as Skep's own."""

import psycopg
import pytest

from skep import errors
from skep.errors import from_sqlstate


def test_the_words_of_the_server_are_kept(conn: psycopg.Connection):
    raised = "DO $$ BEGIN RAISE 'no queue' USING ERRCODE = 'SK002', DETAIL = 'orders', HINT = 'create it'; END $$"
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(raised)
    error = from_sqlstate(caught.value)
    assert type(error) is errors.NotFound
    assert (error.message, error.detail, error.hint) == ("no queue", "orders", "create it")
