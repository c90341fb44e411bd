"""The files that the site of docs/ copies from elsewhere."""

from pathlib import Path

import pytest

from tools import site


def test_directories_beside_the_examples_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    files = [tmp_path / name for name in ("examples/replay.py", "deploy/skep.service", "CHANGELOG.md")]
    for path in [*files, tmp_path / "examples/__pycache__/replay.cpython-313.pyc"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert site.copied_files() == files
