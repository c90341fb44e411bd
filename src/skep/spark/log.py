"""The log as the driver asks it: what is visible, and which runs of lanes lie between two positions."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from skep.errors import ConfigError, NotFound, explained
from skep.spark import window
from skep.spark.archive import archived, describe
from skep.spark.database import ARCHIVED_LANES, GROUP_EXISTS, OFFSETS_AT, TIMES_OF, VIEW, WINDOW, Database, database
from skep.spark.options import SourceOptions
from skep.spark.position import Cut, Position
from skep.spark.window import Lost, News, Run

ALWAYS = datetime.max.replace(tzinfo=UTC)
log = logging.getLogger("skep.spark")


@dataclass(frozen=True, slots=True)
class View:
    """What is visible at a moment, and in which queues."""

    database: str
    snapshot: str
    queue_ids: list[int]
    queues: list[str]


class Log:
    """The queues of a reader; keeps the window it looked at last, which is cut again and again."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._window: tuple[object, list[News]] = (None, [])
        self._offsets_at: dict[str, list[int]] = {}  # of the window

    @property
    def db(self) -> Database:
        return database(self.options.url)

    @property
    def name(self) -> str:
        """Which queues a checkpoint is about, in a few letters: there may be thousands."""
        return hashlib.sha256(json.dumps(self.options.selection.arguments()).encode()).hexdigest()[:12]

    def view(self) -> View:
        try:
            return View(*self.db.one(VIEW, **self.options.selection.arguments()))
        except psycopg.errors.InvalidRegularExpression as error:
            pattern = self.options.selection.pattern
            raise ConfigError(f'option subscribePattern is "{pattern}": {error.diag.message_primary}') from None

    def start(self) -> Position:
        """Return where the options say that a new stream begins."""
        view, place = self.view(), self.options.start
        position = Position(view.database, self.name)
        if place == "latest":
            return position.at(view.snapshot)
        return Position(view.database, self.name, start=self._place(place, view))

    def batch(self) -> list[Run]:
        """Return what a batch reads."""
        view = self.view()
        stop = self.options.stop
        since = view.snapshot if self.options.start == "latest" else None
        start = {} if since else self._place(self.options.start, view)
        found = self._ask(
            view, since, start, view.snapshot, None if isinstance(stop, str) else {**stop, "view": view.snapshot}
        )
        runs = self._present(
            found, window.lost(found, [None] * len(found)), [news.first for news in found], [news.end for news in found]
        )
        return [*self._only_archived(view), *runs]

    def _only_archived(self, view: View) -> list[Run]:
        """Return partitions that are gone from the log, if everything is asked for."""
        if self.options.archive is None or self.options.start != {"archive": True}:
            return []
        queues = sorted({*view.queues, *(self.options.selection.queues or ())})
        return [Run(*row) for row in self.db.rows(ARCHIVED_LANES, queues=queues)]

    def _place(self, place: "str | dict[str, Any]", view: View) -> dict[str, Any]:
        if isinstance(place, str):
            return {}
        if "group" in place and not self.db.one(GROUP_EXISTS, group=place["group"])[0]:
            raise NotFound(f"startingOffsets is group:{place['group']}, and there is no such group")
        return {**place, "view": view.snapshot} if "offsets" in place else place

    def runs(self, start: Position, end: Position) -> list[Run]:
        """Return what lies between two positions. Always the same runs, but for what is lost meanwhile."""
        view = start.cut.view if start.cut else (end.cut.view if end.cut else end.snapshot)
        found = self.window(start, str(view))
        done = self.progress(found, start.cut)
        goal = self.progress(found, end.cut) if end.cut else [news.end for news in found]
        return self._present(found, self._lost(found, start.cut), done, goal)

    def window(self, start: Position, view: str) -> list[News]:
        """Return everything between the beginning of a position's window and a snapshot."""
        key = (start.snapshot, json.dumps(start.start), view)
        if self._window[0] != key:
            self._keep(key, self._ask(self.view(), start.snapshot, start.start, view))
        return self._window[1]

    def _keep(self, key: object, found: list[News]) -> None:
        self._window = (key, found)
        self._offsets_at.clear()

    def remember(self, start: Position, view: str, found: list[News]) -> None:
        """Keep a window that is known without asking."""
        self._keep((start.snapshot, json.dumps(start.start), view), found)

    def news(self, view: View, since: str) -> list[News]:
        return self._ask(view, since, None, view.snapshot)

    def everything(self, view: View, until: str) -> list[News]:
        """Return every lane with what it keeps, up to a snapshot."""
        return self._ask(view, None, None, until)

    def progress(self, found: Sequence[News], cut: Cut | None) -> list[int]:
        """Return up to where each lane of a window is read."""
        if cut is None:
            return [news.first for news in found]
        since = window.bounds(found, self.offsets_at(found, cut.since), otherwise="first")
        until = window.bounds(found, self.offsets_at(found, cut.until), otherwise="end")
        return window.progress(found, cut.lane, cut.offset, since, until)

    def offsets_at(self, found: Sequence[News], instant: str | None) -> list[int] | None:
        if instant is None:
            return None
        if instant not in self._offsets_at:
            lanes = [news.lane for news in found]
            self._offsets_at[instant] = self.db.one(OFFSETS_AT, lanes=lanes, instant=instant)[0] or []
        return self._offsets_at[instant]

    def times(self, runs: Sequence[Run]) -> tuple[datetime | None, datetime | None]:
        lanes, firsts, ends = (list(column) for column in zip(*runs, strict=True))
        oldest, newest = self.db.one(TIMES_OF, lanes=lanes, firsts=firsts, ends=ends)
        return oldest, newest

    def _ask(self, view: View, since: str | None, start: object, until: str, stop: object = None) -> list[News]:
        with explained():
            rows = self.db.rows(
                WINDOW, queue_ids=view.queue_ids, since=since, until=until, start=json.dumps(start or {}),
                stop=None if stop is None else json.dumps(stop), group=self.options.group,
            )  # fmt: skip
        return [News(*row) for row in rows]

    def _lost(self, found: Sequence[News], cut: Cut | None) -> list[Lost]:
        if cut is None:
            return window.lost(found, [None] * len(found))
        since = datetime.fromisoformat(cut.since) if cut.since else None
        until = datetime.fromisoformat(cut.until) if cut.until else ALWAYS
        return window.lost(found, [until if news.lane < cut.lane else since for news in found], cut.lane, cut.offset)

    def _present(
        self, found: Sequence[News], gone: Sequence[Lost], done: Sequence[int], goal: Sequence[int]
    ) -> list[Run]:
        if gone and self.options.fail_on_data_loss:
            archived(self.db, self.options.archive, gone)
        elif gone:
            log.warning("%s", describe(self.db, self.options.archive, gone))
        return window.between(self.readable(found), done, goal)

    def readable(self, found: Sequence[News]) -> Sequence[News]:
        """Return a window with everything that can be read: with an archive, what the log does not keep too."""
        return [news._replace(kept=0) for news in found] if self.options.archive else found
