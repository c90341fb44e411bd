"""Settings from flags and environment, and what a database URL may look like."""

from dataclasses import fields
from pathlib import Path

import pytest

from skep.config import Config, check_database_url, display_database_url, env_name, help_text
from skep.errors import ConfigError

URL = "postgresql://ann:secret@db.example:5433/shop"


def test_defaults():
    assert Config.load(environ={}) == Config(database_url=None, data_dir=None)


def test_every_setting_comes_from_the_environment():
    environ = {"SKEP_DATABASE_URL": URL, "SKEP_DATA_DIR": "/data"}
    assert {env_name(setting.name) for setting in fields(Config)} == set(environ)
    assert Config.load(environ=environ) == Config(database_url=URL, data_dir=Path("/data"))


def test_a_flag_wins_over_the_environment():
    environ = {"SKEP_DATABASE_URL": "postgresql://elsewhere/db", "SKEP_DATA_DIR": "/elsewhere"}
    assert Config.load(database_url=URL, data_dir=Path("/here"), environ=environ) == Config(URL, Path("/here"))


def test_an_empty_variable_is_unset():
    assert Config.load(environ={"SKEP_DATABASE_URL": "", "SKEP_DATA_DIR": ""}) == Config()


def test_every_setting_is_documented():
    assert all(env_name(setting.name) in help_text(setting.name) for setting in fields(Config))


@pytest.mark.parametrize(
    "url",
    [URL, "postgres://localhost/db", "postgresql:///db", "host=/run/postgresql dbname=shop", "postgresql://a:1,b:2/db"],
)
def test_good_urls(url: str):
    assert check_database_url(url) == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("mysql://ann:secret@db/shop", "mysql://"),
        ("postgresq://ann:secret@db/shop", "postgresq://"),
        ("secret", "cannot be read"),
        ("://ann:secret@db/shop", "cannot be read"),
        ("postgresql://ann:sec ret@db/shop", "unexpected spaces"),
        ("postgresql://ann:%secret@db/shop", "percent-encoded"),
        ("postgresql://ann:secret@[::1/shop", "end of string"),
        ("postgresql://ann:secret@db/shop?colour=secret", "query parameter"),
        ("host=db password=secret colour=red", "connection option"),
        ("host=db password='secret", "unterminated"),
        ("postgresql://ann:secret@db:port/shop", "port"),
        ("postgresql://ann:secret@db:70000/shop", "port"),
    ],
)
def test_bad_urls_are_explained_without_the_password(url: str, says: str):
    with pytest.raises(ConfigError) as caught:
        Config(database_url=url)
    assert says in caught.value.message
    assert "expected postgresql://" in (caught.value.hint or "")
    assert "secret" not in f"{caught.value.message} {caught.value.detail} {caught.value.hint}"
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://ann@db.example:5433/shop"),
        ("host=db dbname=shop password=secret", "postgresql://db/shop"),
        ("postgresql:///", "postgresql:///"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str):
    assert display_database_url(url) == shown
