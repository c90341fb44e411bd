"""`skep key`: API keys of the server. The secret is shown once and is not stored."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from skep.cli.confirm import confirm
from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, Json, Yes, choose
from skep.cli.show import Cell, as_dict, duration, one_line, say, show_json, show_table
from skep.cli.times import parse_duration
from skep.errors import InvalidArgument, NotFound
from skep.message import ApiKey

key_app = typer.Typer(help="Manage API keys of the server.", no_args_is_help=True)


@key_app.command()
def create(
    name: Annotated[
        str, typer.Argument(help="The owner of the key; stored as producer of its messages.", show_default=False)
    ],
    role: Annotated[
        str | None,
        typer.Option(
            metavar="admin|read-write|read-only|write-only",
            help="Role on every queue.",
            autocompletion=choose("admin", "read-write", "read-only", "write-only"),
            show_default=False,
        ),
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN:ACTION,…",
            help="Rights on matching queues, instead of the role: 'orders.*:push,pop,ack'. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Lifetime of the key: 12h, 90d.", show_default=False)
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a key and show it once."""
    grants = _parse_grants(grant or [])
    _check_role(role, grants)
    expires_at = None if expires is None else _after(expires)
    with connect(database_url, data_dir) as mq:
        token, key = mq.create_api_key(name, role, grants=grants, expires_at=expires_at)
    if as_json:
        show_json({"token": token, **_without_hash(key)})
        return
    say(token)
    say(one_line(f"key {key.id} of {key.name}: {_rights(key)}, {_end(key)}; the line above is not shown again"))


def _parse_grants(texts: Sequence[str]) -> dict[str, list[str]] | None:
    """Parse PATTERN:ACTION,…; actions of a repeated pattern add up. A pattern without actions denies everything."""
    from skep.server.http.grants import ACTIONS

    grants: dict[str, list[str]] = {}
    for text in texts:
        pattern, colon, actions = text.rpartition(":")
        names = [action.strip() for action in actions.split(",") if action.strip()]
        if not (colon and pattern) or not ACTIONS.issuperset(names):
            hint = f"write 'orders.*:push,pop'; actions: {', '.join(sorted(ACTIONS))}"
            raise InvalidArgument(f'"{one_line(text)}" is not a grant', hint=hint)
        grants.setdefault(pattern, []).extend(names)
    return grants or None


def _check_role(role: str | None, grants: dict[str, list[str]] | None) -> None:
    from skep.server.http.grants import Role

    known = [str(each) for each in Role]
    if role is not None and role not in known:
        raise InvalidArgument(f'there is no role "{one_line(role)}"', hint=f"roles: {', '.join(known)}")
    if role is None and grants is None:
        raise InvalidArgument("a key needs a role, grants or both", hint="pass --role or --grant")


def _after(lifetime: str) -> datetime:
    try:
        return datetime.now(UTC) + parse_duration(lifetime)
    except OverflowError:
        message = f'the duration "{one_line(lifetime)}" is too long'
        raise InvalidArgument(message, hint="write 12h or 90d") from None


@key_app.command("list")
def list_keys(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """List the keys, newest first."""
    with connect(database_url, data_dir) as mq:
        keys = mq.api_keys()
    if as_json:
        show_json([_without_hash(key) for key in keys])
        return
    show_table(("id", "name", "rights", "created", "last used", "expires"), (_row(key) for key in keys))


@key_app.command()
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="Key id, as `skep key list` shows it.", show_default=False)
    ],
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Revoke a key for good. All servers reject it within five seconds."""
    with connect(database_url, data_dir) as mq:
        key = next((key for key in mq.api_keys() if key.id == key_id), None)
        if key is None:
            raise NotFound(f'there is no key "{one_line(key_id)}"', hint="`skep key list` shows all")
        if not yes:
            confirm(one_line(f"Revoke key {key.id} of {key.name}?"), "revoked")
        key = mq.revoke_api_key(key_id)
    if as_json:
        show_json(_without_hash(key))
    else:
        say(one_line(f"key {key.id} of {key.name} revoked"))


def _without_hash(key: ApiKey) -> dict[str, Any]:
    return {name: value for name, value in as_dict(key).items() if name != "hash"}


def _row(key: ApiKey) -> tuple[Cell, ...]:
    return key.id, key.name, _rights(key), key.created_at, key.last_used_at, _end(key)


def _rights(key: ApiKey) -> str:
    grants = (f"{pattern}:{','.join(actions)}" for pattern, actions in (key.grants or {}).items())
    return " ".join([*([key.role] if key.role else []), *grants])


def _end(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None:
        return "never expires"
    left = (key.expires_at - datetime.now(UTC)).total_seconds()
    return f"expires in {duration(left)}" if left > 0 else "expired"
