"""Which queues are encrypted, as of two seconds ago at most: so long other servers may store plain what is new."""

from time import monotonic

from skep.client.aio.database import AsyncDatabase

FRESH = 2.0
SEALED = "SELECT name FROM skep.queues WHERE encryption_enabled"


class SealedQueues:
    """The names of the queues whose payloads are sealed."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._names: frozenset[str] = frozenset()
        self._until = 0.0

    async def names(self) -> frozenset[str]:
        if monotonic() > self._until:
            self._until = monotonic() + FRESH  # the others go on with what is known while one asks
            try:
                self._names = frozenset(await self._database.call(SEALED, {}, str))
            except BaseException:
                self.forget()
                raise
        return self._names

    def forget(self) -> None:
        """Ask again before the next push."""
        self._until = 0.0
