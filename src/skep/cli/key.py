"""`skep key`: keys for programs that call the server. A secret is shown once, and kept nowhere."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from skep.cli.ask import confirm
from skep.cli.connect import connect
from skep.cli.show import Cell, as_dict, one_line, say, show_json, show_table, span
from skep.cli.times import parse_length
from skep.config import Config
from skep.errors import InvalidArgument, NotFound
from skep.message import ApiKey
from skep.server.http.grants import ACTIONS, Role


def parse_grants(texts: Sequence[str] | None) -> dict[str, list[str]] | None:
    """Read PATTERN:ACTION,…; the same pattern twice adds up, no action at all takes everything away."""
    grants: dict[str, list[str]] = {}
    for text in texts or ():
        pattern, colon, actions = text.rpartition(":")
        wanted = [action.strip() for action in actions.split(",") if action.strip()]
        if not (colon and pattern) or not ACTIONS.issuperset(wanted):
            hint = f"write 'orders.*:push,pop'; actions: {', '.join(sorted(ACTIONS))}"
            raise InvalidArgument(f'"{one_line(text)}" is no grant', hint=hint)
        grants.setdefault(pattern, []).extend(wanted)
    return grants or None


def create(
    config: Config,
    name: str,
    role: str | None,
    grants: dict[str, list[str]] | None,
    expires: str | None,
    *,
    as_json: bool,
) -> None:
    _check_role(role, grants)
    expires_at = None if expires is None else _after(expires)
    with connect(config) as mq:
        token, key = mq.create_api_key(name, role, grants=grants, expires_at=expires_at)
    if as_json:
        show_json({"token": token, **_shown(key)})
        return
    say(token)
    say(one_line(f"key {key.id} of {key.name}: {_rights(key)}, {_end(key)}; the line above is not shown again"))


def _check_role(role: str | None, grants: dict[str, list[str]] | None) -> None:
    known = [str(each) for each in Role]
    if role is not None and role not in known:
        raise InvalidArgument(f'there is no role "{one_line(role)}"', hint=f"roles: {', '.join(known)}")
    if role is None and grants is None:
        raise InvalidArgument("a key has a role, grants or both", hint="say --role or --grant")


def _after(length: str) -> datetime:
    try:
        return datetime.now(UTC) + parse_length(length)
    except OverflowError:
        raise InvalidArgument(f'"{one_line(length)}" is too long a time', hint="write 12h or 90d") from None


def list_keys(config: Config, *, as_json: bool) -> None:
    with connect(config) as mq:
        keys = mq.api_keys()
    if as_json:
        show_json([_shown(key) for key in keys])
        return
    show_table(("id", "name", "rights", "created", "last used", "ends"), (_row(key) for key in keys))


def revoke(config: Config, key_id: str, *, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        key = next((key for key in mq.api_keys() if key.id == key_id), None)
        if key is None:
            raise NotFound(f'there is no key "{one_line(key_id)}"', hint="`skep key list` shows all")
        if not yes:
            confirm(one_line(f"Revoke key {key.id} of {key.name}?"), "revoked")
        key = mq.revoke_api_key(key_id)
    if as_json:
        show_json(_shown(key))
    else:
        say(one_line(f"key {key.id} of {key.name} revoked"))


def _shown(key: ApiKey) -> dict[str, Any]:
    """Return everything but the hash, which is nobody's business."""
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
    return f"expires in {span(left)}" if left > 0 else "expired"
