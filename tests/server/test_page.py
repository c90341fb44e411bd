"""docs/server.md says what is so: settings, routes, metrics."""

import re
from dataclasses import fields
from pathlib import Path

from skep.config import Config, env_name
from skep.message import MaintenanceStatus
from skep.server import routes
from skep.server.http.exposition import Numbers, Place, expose
from skep.server.http.metrics import Meter
from skep.server.http.state import State

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text()


def shown(value: object) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_the_settings_are_those_of_the_configuration():
    told = [line for line in PAGE.splitlines() if line.startswith("| `SKEP_")]
    true = [
        f"| `{env_name(setting.name)}` | {shown(setting.default)} | {setting.metadata['help']}"
        + (f" For example `{setting.metadata['example']}`." if setting.metadata["example"] else "")
        + " |"
        for setting in fields(Config)
    ]
    assert told == true


def test_every_variable_is_a_setting():
    known = {env_name(setting.name) for setting in fields(Config)} | {"SKEP_DEBUG", "SKEP_POSTGRES_BIN"}
    for path in ("docs/server.md", "deploy/Containerfile", "deploy/skep.service"):
        named = set(re.findall(r"SKEP_[A-Z_]+[A-Z]", (ROOT / path).read_text()))
        assert {name for name in named if not any(each.startswith(name) for each in known)} == set()


async def test_a_server_has_as_many_connections_as_the_pages_say():
    state = State(Config(database_url="postgresql://nobody@127.0.0.1:1/nowhere"))
    pools = sum(each._pool_size for each in (state.mq._database, state.database, state.admin))
    for page in ("server", "sizing", "pgbouncer"):
        assert f"{pools + 1} at most" in (ROOT / "docs" / f"{page}.md").read_text()  # and one that listens


def test_every_route_is_served():
    paths = {endpoint.path for endpoint in routes.ENDPOINTS}
    text = "\n".join(line for line in PAGE.splitlines() if not line.startswith("| `SKEP_"))
    named = set(re.findall(r"`(/[a-z/.]+)`", text)) | set(re.findall(r"localhost:6632(/[a-z0-9/]+)", text))
    assert named - {"/api/v1/pop/queue/orders"} <= paths
    assert len(named) > 6


def test_every_metric_is_told_of():
    meter = Meter()
    meter.request("GET", "/x", 200, 0.1)
    worker = meter.read({"size": 1, "idle": 1, "active": 0, "waiting": 0}, {"q": 1})
    places = [Place("q", "", 1, 1, 0, 0, 0.0), Place("q", "g", 1, 1, 0, 0, 1.0)]
    status = MaintenanceStatus(push=False, pop=False, held=0, refused=0, is_pending=False)
    text = expose(Numbers([worker], meter.counts, places, status)).decode()
    families = {name for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE) if not name.endswith("_created")}
    assert set(re.findall(r"`((?:skep|queen)_[a-z_]+)`", PAGE.partition("Good alerts")[0])) - {"skep_"} == families
