"""What MkDocs builds the site with: reference pages made of the code, and links to files outside of docs/.

MkDocs calls `on_files` once and `on_page_markdown` for each page.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from skep import errors
from skep.cli import app
from skep.cli.examples import EXAMPLES
from skep.config import Config, env_name
from skep.message import MaintenanceStatus
from skep.server import routes
from skep.server.http.exposition import Numbers, Place, expose
from skep.server.http.metrics import Meter

ROOT = Path(__file__).parent.parent
SQL = ROOT / "src/skep/engine/sql"
SIGNATURE = re.compile(r"^CREATE FUNCTION skep\.([a-z]\w*)\(([^$]*?)\)\s*(RETURNS [^$]*?)?\s*LANGUAGE", re.MULTILINE)
COMMENT = re.compile(r"^COMMENT ON FUNCTION skep\.(\w+)(?:\([^)]*\))? IS\s+((?:'[^\n]*'\s*)+);$", re.MULTILINE)
OUTSIDE = re.compile(r"\]\(\.\./((?:examples|deploy)/[\w./-]+|CHANGELOG\.md)(#[\w-]+)?\)")
WIDTH = 60  # of a signature on one line
ALLOWED = re.compile(r"CALL skep\._allow\('(\w+)', '([a-z]\w*)'")
ROLES = ("skep_producer", "skep_consumer", "skep_admin")


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401
    pages = {
        "commands": commands,
        "settings": settings,
        "functions": functions,
        "http": http,
        "errors": error_tree,
        "metrics": metrics,
    }
    for name, page in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(page())))
    for path in copied_files():
        target = str(path.relative_to(ROOT))
        files.append(File.generated(config, target, abs_src_path=str(path)))
    return files


def copied_files() -> list[Path]:
    """Return the files outside of docs/ that the site has copies of."""
    found = [*ROOT.glob("examples/*"), *ROOT.glob("deploy/*"), ROOT / "CHANGELOG.md"]
    return [path for path in found if path.is_file()]  # Python leaves a __pycache__ beside an example it imports


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Point links out of docs/ to the copies in the site."""
    up = "../" * page.file.src_uri.count("/")
    return OUTSIDE.sub(rf"]({up}\1\2)", markdown)


def _table(*header: str) -> str:
    return f"| {' | '.join(header)} |\n|{'---|' * len(header)}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def commands() -> Iterator[str]:
    yield "# All commands\n\n`skep COMMAND --help` says the same. [The command line](../cli.md) tells what for.\n"
    yield from _command(typer.main.get_command(app), "skep")


def _command(command: Any, name: str) -> Iterator[str]:  # noqa: ANN401
    children = getattr(command, "commands", None)
    if children:
        for child in children.values():
            yield from _command(child, f"{name} {child.name}")
        return
    arguments = [f"[{each.name.upper()}]" for each in command.params if each.param_type_name == "argument"]
    yield f"## {name}\n\n{inspect.cleandoc(command.help or '')}\n"
    yield f"```text\n{' '.join([name, *arguments, '[OPTIONS]'])}\n```\n"
    yield _table("option", "")
    for option in command.params:
        names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
        yield f"| {names} | {_cell(option.help or '')} |"
    examples = "\n".join(EXAMPLES.get(name.removeprefix("skep "), ()))
    yield f"\n```sh\n{examples}\n```\n"


def settings() -> Iterator[str]:
    yield "# Settings\n\nEnvironment variables; those of `skep serve --help` are flags as well, and a flag wins.\n"
    yield _table("variable", "default", "")
    for setting in fields(Config):
        default = setting.default
        shown = "" if default in (None, ()) else ",".join(default) if isinstance(default, tuple) else str(default)
        example = f" For example `{setting.metadata['example']}`." if setting.metadata["example"] else ""
        yield f"| `{env_name(setting.name)}` | {shown} | {_cell(setting.metadata['help'] + example)} |"


def functions() -> Iterator[str]:
    yield "# All functions\n\nOf the schema `skep`, by the role that may call them. [SQL](../sql.md) tells what for.\n"
    sources = "\n".join(path.read_text() for path in sorted(SQL.glob("*/*.sql")))
    found: dict[str, list[tuple[str, str, str]]] = {}
    for signature, comment in zip(SIGNATURE.findall(sources), COMMENT.findall(sources), strict=True):
        name, arguments, returns = signature
        found.setdefault(name, []).append((arguments, returns, comment[1]))
    allowed = list(dict.fromkeys(ALLOWED.findall(sources)))
    for role in ROLES:
        yield f"## {role}\n"
        for name in (name for allowed_role, name in allowed if allowed_role == role):
            yield f"### {name}\n"
            for overload in found[name]:
                yield from _function(name, *overload)


def _function(name: str, arguments: str, returns: str, comment: str) -> Iterator[str]:
    said = re.sub(r"'\n\s*'", "", comment).strip("'").replace("''", "'")
    inner, result = " ".join(arguments.split()), " ".join(returns.split())
    if len(inner) > WIDTH:
        inner = "\n    " + re.sub(r", (?=\w)", ",\n    ", inner) + "\n"
    if len(result) > WIDTH:
        result = re.sub(r"(?<=[(,]) ?(?=\w+ )", "\n    ", result)
    yield f"```sql\nskep.{name}({inner}) {result}\n```\n\n{said}\n"


def http() -> Iterator[str]:
    yield "# HTTP\n\nA running server has them at `/docs`, with parameters and answers, and at `/openapi.json`.\n"
    yield _table("route", "who may", "")
    for endpoint in sorted(routes.ENDPOINTS, key=lambda each: (each.path, each.method)):
        path = endpoint.path.replace("...", "")
        yield f"| `{endpoint.method} {path}` | {endpoint.action or 'everybody'} | {_cell(endpoint.summary)} |"


def error_tree() -> Iterator[str]:
    yield f"# Errors\n\n```text\n{inspect.cleandoc(errors.__doc__ or '')}\n```\n"
    yield _table("SQLSTATE", "class", "the same call may succeed later", "")
    for state, kind in errors.SQLSTATES.items():
        again = "yes" if kind.retryable else "no"
        shown = f"{state}xxx" if len(state) == len("08") else state
        yield f"| `{shown}` | `{kind.__name__}` | {again} | {_cell(kind.__doc__ or '')} |"


def metrics() -> Iterator[str]:
    yield "# Metrics\n\nAt `/metrics/prometheus`. [The server](../server.md#metrics) tells which to watch.\n"
    meter = Meter()
    meter.request("GET", "/", 200, 0.1)
    worker = meter.read({"size": 0, "idle": 0, "active": 0, "waiting": 0}, {"q": 1})
    status = MaintenanceStatus(push=False, pop=False, held=0, refused=0, is_pending=False)
    places = [Place("q", "", 1, 1, 0, 0, 0.0), Place("q", "g", 1, 1, 0, 0, 1.0)]
    text = expose(Numbers([worker], meter.counts, places, status)).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)", text, re.MULTILINE))
    yield _table("family", "kind", "")
    for name, said in re.findall(r"^# HELP (\S+) (.*)", text, re.MULTILINE):
        if not name.endswith("_created"):
            yield f"| `{name}` | {kinds[name]} | {_cell(said)} |"
