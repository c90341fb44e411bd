"""Settings from flags and environment, and checks of the database URL."""

from dataclasses import fields
from pathlib import Path

import pytest

from skep import AsyncSkep, Skep, cli
from skep.config import Config, check_database_url, display_database_url, env_name, help_text
from skep.errors import ConfigError

URL = "postgresql://ann:secret@db.example:5433/shop"
SECRET = "0123456789abcdef0123456789abcdef"
SERVING = ("__init__.py", "serve.py")


# For every setting a value that is not its default: as text, and converted.
SETTINGS: dict[str, tuple[str, object]] = {
    "lease_expiry_interval": ("6", 6.0),
    "detection_interval": ("0.1", 0.1),
    "retention_interval": ("3600", 3600.0),
    "sampling_interval": ("30", 30.0),
    "pruning_interval": ("86400", 86400.0),
    "held_push_interval": ("7.5", 7.5),
    "outbox_interval": ("2", 2.0),
    "delayed_interval": ("0.5", 0.5),
    "schedule_interval": ("3", 3.0),
    "database_url": (URL, URL),
    "data_dir": ("/data", Path("/data")),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("80", 80),
    "workers": ("4", 4),
    "max_body_bytes": ("2048", 2048),
    "max_batch": ("5", 5),
    "max_pending": ("6", 6),
    "cors_origins": ("https://a.example, https://b.example", ("https://a.example", "https://b.example")),
    "tls_cert": ("/tls.crt", Path("/tls.crt")),
    "tls_key": ("/tls.key", Path("/tls.key")),
    "trusted_proxies": ("10.0.0.0/8,::1,", ("10.0.0.0/8", "::1")),
    "reports": ("/srv/reports", Path("/srv/reports")),
    "log_format": ("json", "json"),
    "log_level": ("DEBUG", "debug"),
    "auth": ("Yes", True),
    "jwt_secret": (SECRET, SECRET),
    "jwt_public_key": ("/jwt.pem", "/jwt.pem"),
    "jwt_jwks_url": ("https://id.example/jwks", "https://id.example/jwks"),
    "jwt_algorithm": ("HS256", "HS256"),
    "jwt_issuer": ("https://id.example/", "https://id.example/"),
    "jwt_audience": ("skep", "skep"),
    "jwt_clock_skew": ("2.5", 2.5),
    "jwt_roles_claim": ("a", "a"),
    "jwt_roles_array_claim": ("b", "b"),
    "jwt_grants_claim": ("c", "c"),
    "jwt_role_admin": ("d", "d"),
    "jwt_role_read_write": ("e", "e"),
    "jwt_role_read_only": ("f", "f"),
    "jwt_role_write_only": ("g", "g"),
    "encryption_keys": ("k1:00", "k1:00"),
}


def test_defaults():
    assert Config.load(environ={}) == Config(database_url=None, data_dir=None)


@pytest.mark.parametrize("left_out", ["jwt_public_key", "jwt_jwks_url"])  # only one of them can be set
def test_every_setting_comes_from_the_environment(left_out: str):
    assert {setting.name for setting in fields(Config)} == set(SETTINGS)
    loaded = Config.load(environ={env_name(name): text for name, (text, _) in SETTINGS.items() if name != left_out})
    found = {name: getattr(loaded, name) for name in SETTINGS if name != left_out}
    assert found == {name: value for name, (_, value) in SETTINGS.items() if name != left_out}
    assert all(found[setting.name] != setting.default for setting in fields(Config) if setting.name != left_out)


def test_a_flag_wins_over_the_environment():
    environ = {"SKEP_DATABASE_URL": "postgresql://elsewhere/db", "SKEP_DATA_DIR": "/elsewhere", "SKEP_PORT": "1"}
    assert Config.load(database_url=URL, data_dir=Path("/here"), port=2, environ=environ) == Config(
        URL, Path("/here"), port=2
    )
    assert Config.load(port="2", auth=None, environ=environ | {"SKEP_AUTH": "1"}).auth


def test_false_and_zero_are_flags_too():
    config = Config.load(auth=False, port=0, environ={"SKEP_AUTH": "true", "SKEP_PORT": "1"})
    assert (config.auth, config.port) == (False, 0)


def test_an_empty_variable_is_unset():
    assert Config.load(environ=dict.fromkeys(map(env_name, SETTINGS), "")) == Config()


def test_an_unknown_flag_is_refused():
    with pytest.raises(TypeError, match="colour"):
        Config.load(colour="red", environ={})


def test_a_client_neither_fails_for_settings_of_a_server_nor_keeps_its_secrets():
    """Kubernetes sets SKEP_PORT in every pod next to a service named skep."""
    environ = {"SKEP_DATABASE_URL": URL, "SKEP_PORT": "tcp://10.0.0.1:6632", "SKEP_JWT_SECRET": SECRET}
    assert Config.load_client(environ=environ) == Config(URL)
    assert Config.load_client("postgresql://b/c", Path("/d"), environ=environ) == Config("postgresql://b/c", Path("/d"))


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SKEP_PORT": "tcp://10.0.0.1:6632"}, 'SKEP_PORT must be a whole number, got "tcp://10.0.0.1:6632"'),
        ({"SKEP_PORT": "65536"}, 'SKEP_PORT must be between 0 and 65535, got "65536"'),
        ({"SKEP_PORT": "1.5"}, "SKEP_PORT"),
        ({"SKEP_WORKERS": "0"}, "SKEP_WORKERS"),
        ({"SKEP_MAX_BATCH": "-1"}, "SKEP_MAX_BATCH"),
        ({"SKEP_JWT_CLOCK_SKEW": "nan"}, "SKEP_JWT_CLOCK_SKEW"),
        ({"SKEP_JWT_CLOCK_SKEW": "inf"}, "SKEP_JWT_CLOCK_SKEW"),
        ({"SKEP_JWT_CLOCK_SKEW": "soon"}, "must be a number"),
        ({"SKEP_AUTH": "maybe"}, 'SKEP_AUTH must be true or false, got "maybe"'),
        ({"SKEP_LOG_FORMAT": "xml"}, 'SKEP_LOG_FORMAT must be one of text, json, got "xml"'),
        ({"SKEP_JWT_ALGORITHM": "none"}, "one of HS256, RS256, EdDSA, auto"),
        ({"SKEP_TLS_CERT": "/tls.crt"}, "SKEP_TLS_KEY is missing"),
        ({"SKEP_TLS_KEY": "/tls.key"}, "SKEP_TLS_CERT is missing"),
        ({"SKEP_JWT_SECRET": SECRET}, "SKEP_AUTH is off"),
        ({"SKEP_AUTH": "false", "SKEP_JWT_PUBLIC_KEY": "/jwt.pem"}, "SKEP_AUTH is off"),
        ({"SKEP_AUTH": "true", "SKEP_JWT_SECRET": "hunter2"}, "at least 32 bytes"),
        ({"SKEP_AUTH": "true", "SKEP_JWT_ALGORITHM": "HS256"}, "no key for it is configured"),
        (
            {"SKEP_AUTH": "true", "SKEP_JWT_ALGORITHM": "RS256", "SKEP_JWT_SECRET": SECRET},
            "no key for it is configured",
        ),
        ({"SKEP_AUTH": "true", "SKEP_JWT_JWKS_URL": "file:///etc/passwd"}, "an http:// or https:// URL"),
        ({"SKEP_AUTH": "true", "SKEP_JWT_JWKS_URL": "https://a", "SKEP_JWT_PUBLIC_KEY": "/b"}, "cannot both be set"),
    ],
)
def test_an_invalid_setting_is_refused_with_an_example(environ: dict[str, str], says: str):
    with pytest.raises(ConfigError) as caught:
        Config.load(environ=environ)
    assert says in caught.value.message
    assert "SKEP_" in (caught.value.hint or "") or caught.value.hint == "set one of them"
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.__cause__ is None


def test_api_keys_alone_are_enough():
    assert Config.load(environ={"SKEP_AUTH": "on"}).auth


def test_secrets_are_not_shown():
    shown = repr(Config(URL, auth=True, jwt_secret=SECRET, encryption_keys="k1:beef"))
    assert "auth=True" in shown
    assert [secret for secret in (URL, SECRET, "beef") if secret in shown] == []


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
        ("secret", "is invalid"),
        ("://ann:secret@db/shop", "is invalid"),
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


@pytest.mark.parametrize("client", [Skep, AsyncSkep])
def test_clients_and_commands_read_only_their_settings(client: type, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKEP_PORT", "tcp://10.0.0.1:6632")
    client(URL)
    sources = Path(cli.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "Config.load(" in path.read_text() and path.name not in SERVING] == []
