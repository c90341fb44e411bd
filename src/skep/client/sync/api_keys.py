# Generated from src/skep/client/aio/api_keys.py by `make format`. Change that file.
"""API keys of the server: create, list, revoke, find."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime

from skep.client import calls
from skep.client.encode import dumps
from skep.client.sync.database import Database
from skep.message import ApiKey


class ApiKeyCalls:
    """The client's calls for API keys. Each needs the role `skep_admin`."""

    _database: Database

    def create_api_key(
        self,
        name: str,
        role: str | None = None,
        *,
        grants: Mapping[str, Sequence[str]] | None = None,
        expires_at: datetime | None = None,
    ) -> tuple[str, ApiKey]:
        """Create a key with a role, grants or both. Return the token, which cannot be retrieved later, and the key.

        The secret is generated here, so it is neither in the database nor in its log.
        """
        key_id, secret = secrets.token_hex(6), secrets.token_hex(32)
        listed = None if grants is None else {pattern: list(actions) for pattern, actions in grants.items()}
        arguments = {
            "id": key_id,
            "name": name,
            "hash": hashlib.sha256(secret.encode()).digest(),
            "role": role,
            "grants": None if listed is None else dumps([listed])[1:-1],
            "expires_at": expires_at,
        }
        (made,) = self._database.call(calls.CREATE_API_KEY, arguments, ApiKey)
        return f"skep_{key_id}_{secret}", made

    def api_keys(self) -> list[ApiKey]:
        """Return all keys, newest first, including revoked and expired ones."""
        return self._database.call(calls.LIST_API_KEYS, {}, ApiKey)

    def revoke_api_key(self, key_id: str) -> ApiKey:
        """Revoke a key permanently. Servers that have cached it accept it for up to five more seconds."""
        (revoked,) = self._database.call(calls.REVOKE_API_KEY, {"id": key_id}, ApiKey)
        return revoked

    def find_api_key(self, key_id: str, digest: bytes) -> ApiKey | None:
        """Return the key with this id if it is valid. The caller must compare the hash."""
        found = self._database.call(calls.FIND_API_KEY, {"id": key_id, "hash": digest}, ApiKey)
        return found[0] if found else None
