"""Clients of both faces, as in `tests/client`."""

from tests.client.conftest import clients, db, face, mq, user_url

__all__ = ["clients", "db", "face", "mq", "user_url"]
