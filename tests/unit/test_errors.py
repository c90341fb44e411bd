"""The error tree and its SQLSTATE table."""

import pickle
import traceback

import psycopg
import pytest

from skep import errors
from skep.errors import SkepError, from_sqlstate


def everyone(kind: type[SkepError] = SkepError) -> list[type[SkepError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in everyone(child))]


def error_of(sqlstate: str) -> psycopg.Error:
    error = psycopg.Error("something broke")
    error.sqlstate = sqlstate
    return error


def test_the_tree_is_drawn_in_the_docstring():
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in everyone())


def test_the_table_is_drawn_in_the_docstring():
    for sqlstate in errors.SQLSTATES:
        if sqlstate.startswith("SK"):
            (line,) = (line for line in (errors.__doc__ or "").splitlines() if sqlstate in line)
            assert f"{errors.SQLSTATES[sqlstate].__name__} " in line


@pytest.mark.parametrize(("sqlstate", "kind"), errors.SQLSTATES.items())
def test_a_sqlstate_becomes_its_class(sqlstate: str, kind: type[SkepError]):
    assert type(from_sqlstate(error_of(sqlstate.ljust(5, "0")))) is kind


@pytest.mark.parametrize("sqlstate", ["42P01", "23505", "57P04", "SK999"])
def test_other_sqlstates_are_left_alone(sqlstate: str):
    assert from_sqlstate(error_of(sqlstate)) is None


def test_no_response_from_the_server_is_unavailable():
    assert type(from_sqlstate(psycopg.OperationalError("connection refused"))) is errors.DatabaseUnavailable


def test_a_value_the_driver_cannot_encode_is_invalid():
    assert type(from_sqlstate(psycopg.DataError("cannot contain NUL"))) is errors.InvalidArgument


def test_other_errors_of_the_driver_are_left_alone():
    assert from_sqlstate(psycopg.ProgrammingError("the query has 1 placeholder")) is None


def test_retryable_errors():
    retryable = {kind.__name__ for kind in everyone() if kind.retryable}
    assert retryable == {"Overloaded", "PushBlocked", "TransientError", "DatabaseUnavailable", "KeysUnavailable"}


def test_an_error_keeps_its_parts_through_pickle():
    error = pickle.loads(pickle.dumps(errors.NotFound("no queue", detail="orders", hint="create it")))
    assert (type(error), str(error)) == (errors.NotFound, "no queue")
    assert (error.message, error.detail, error.hint) == ("no queue", "orders", "create it")


def test_a_traceback_shows_the_hint():
    error = errors.SchemaMismatch("Skep is not installed", hint="run `skep install`")
    shown = traceback.format_exception_only(error)
    assert shown == ["skep.errors.SchemaMismatch: Skep is not installed\n", "hint: run `skep install`\n"]
    assert len(traceback.format_exception_only(SkepError("no hint"))) == 1
