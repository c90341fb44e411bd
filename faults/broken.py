"""Builds that are broken on purpose, to see the checker turn red."""


def damage_server(_name: str) -> None:
    """Do nothing yet."""
