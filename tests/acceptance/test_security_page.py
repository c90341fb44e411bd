"""Compare docs/security.md with the code."""

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path

from skep import Skep
from skep.config import Config, env_name
from skep.server.http.grants import Grants, Identity, Role
from tests.cli.process import SKEP, environment

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_the_commands_run(database_url: str) -> None:
    commands = "\n".join(re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE))
    env = environment(SKEP_DATABASE_URL=database_url, PATH=f"{SKEP.parent}:{environment()['PATH']}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with Skep(database_url) as mq:
        assert [(key.name, key.role) for key in mq.api_keys()] == [("billing", None), ("shop", "write-only")]


def test_the_page_names_every_setting() -> None:
    settings = {env_name(setting.name) for setting in fields(Config)}
    named = set(re.findall(r"SKEP_[A-Z_]+[A-Z]", PAGE))
    assert named - settings == set()
    about = re.compile("AUTH|JWT|ENCRYPTION|TLS|TRUSTED|CORS|MAX")
    assert {name for name in settings if about.search(name)} - named == set()


def test_the_roles_may_do_what_the_table_says() -> None:
    table = dict(re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \|$", PAGE, re.MULTILINE))
    assert table == {str(role): ", ".join(sorted(role.actions)) for role in Role}


def test_the_example_of_grants() -> None:
    (example,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    claims = json.loads(example)
    shop = Identity(claims["sub"], frozenset({Role(claims["role"])}), Grants.parse(claims["grants"]))
    assert shop.allows("push", "orders.eu")
    assert [queue for queue in ("orders.eu", "salaries", "mail") if shop.visible(queue)] == ["orders.eu", "mail"]
    assert not shop.allows("push", "mail")


def test_the_tests_that_the_threat_model_names_exist() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(r"`(tests/[\w./*]+)`", (root / "docs/threat-model.md").read_text())
    assert len(named) > 6
    assert [name for name in named if not list(root.glob(name))] == []
