"""Ids of messages and partitions over HTTP: their numbers as a UUID (see `message_id()` in SQL)."""

import re
from functools import lru_cache

_TOP = 1 << 63
_NO_OFFSET = (1 << 62) - 1
_UUID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


def message_id(partition_id: int, offset: int) -> str:
    place = f"{offset | _TOP:016x}"
    return f"{_partition_text(partition_id)}{place[:4]}-{place[4:]}"


@lru_cache(maxsize=65536)
def _partition_text(partition_id: int) -> str:
    text = f"{partition_id:015x}"
    return f"{text[:8]}-{text[8:12]}-8{text[12:]}-"


@lru_cache(maxsize=65536)
def partition_uuid(partition_id: int) -> str:
    return message_id(partition_id, _NO_OFFSET)


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None
