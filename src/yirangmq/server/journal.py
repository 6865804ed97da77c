"""Files by date of a server: the journaled store, hourly snapshots of the counts, and daily retention.

``tick`` is called about once a second and compares the wall clock: a new hour is a new snapshot, a new day is
housekeeping as well. Both run in the thread of the paged calls. After an error they are tried again in a minute.

Opening the store repairs its journal (``stores.journal``), and each repair is logged. The methods are
``files_status``, ``files_check`` and ``files_housekeep``."""

from collections.abc import Iterable
from datetime import tzinfo
from pathlib import Path
from typing import Any

from yirangmq.admin.registry import Given, PagedMethods, read_arguments
from yirangmq.broker.queues import Queues
from yirangmq.clock import SystemClock, zone_or_local
from yirangmq.config.config import Config
from yirangmq.core.errors import QueueError
from yirangmq.core.journal import ZoneHour, day_of, hour_of
from yirangmq.core.ports import Finding, Store, Transaction
from yirangmq.format.journal_line import instant
from yirangmq.format.json_codec import dumps
from yirangmq.observe.logs import log, values
from yirangmq.protocols.context import ServerContext
from yirangmq.server.components import Component
from yirangmq.stores.journal.files import JournalFiles
from yirangmq.stores.journal.maintenance import JournalCheckResult, JournalRetention, check, housekeep
from yirangmq.stores.journal.store import JournaledStore

RETRY_MS = 60_000
"""Retry interval after an error of the disk."""


def zone_of_days(config: Config) -> tzinfo | None:
    return zone_or_local(config.files_by_date_zone, "files_by_date_zone")


def open_journaled(config: Config, store: Store) -> JournaledStore:
    """Wrap a store with the files by date. Opening repairs them; each repair is logged.

    Those of a store in etcd are opened when this node begins to lead."""
    day_files = JournalFiles(Path(config.day_files_folder).absolute(), durability=store.durability())
    node = config.node_name if config.is_clustered else ""
    made = JournaledStore(store, day_files, SystemClock(), zone_of_days(config), node)
    log_repairs(made.findings)
    return made


def log_repairs(findings: Iterable[Finding]) -> None:
    for finding in findings:
        log.warning("files_by_date_repaired", extra=values(kind=finding.kind, where=finding.where, text=finding.text))


def day_files_component(
    config: Config, store: JournaledStore, pages: PagedMethods, context: ServerContext
) -> Component:
    maintenance = DayFilesMaintenance(config, store, pages, context)
    context.methods.add_entry("files_status", lambda committer, given, done: done(maintenance.facts(), None))
    context.methods.add_paged(pages, "files_check", maintenance.check)
    context.methods.add_paged(pages, "files_housekeep", maintenance.housekeep)
    return Component("files by date", status="filesByDate", tick=maintenance.tick, facts=maintenance.facts)


class DayFilesMaintenance:
    """Snapshots and retention of the files by date.

    ``tick`` is called about once a second on the loop's thread; long work runs in the thread of the paged calls. Of the
    nodes of a cluster, the leader does it."""

    def __init__(self, config: Config, store: JournaledStore, pages: PagedMethods, context: ServerContext) -> None:
        self._is_shared = config.is_clustered
        self._committer = context.committer
        self._store = store
        self._files = store.files
        self._keep_days = config.files_by_date_days
        self._zone_name = config.files_by_date_zone
        self._node = config.node_name
        self._pages = pages
        self._clock = context.clock
        self._zone = zone_of_days(config)
        self._snapshot_hour: ZoneHour | None = None
        self._last_housekeeping_day = ""
        self._is_busy = False
        self._retry_at = 0

    @property
    def _current_day(self) -> str:
        return self._files.end.file.partition("/")[0]

    def facts(self) -> dict[str, Any]:
        end = self._files.end
        kept = {"keepDays": self._keep_days, "zone": self._zone_name}
        return {"folder": str(self._files.root), **kept, "file": end.file, "fileBytes": end.size}

    def tick(self) -> None:
        """Start a snapshot if the hour of the wall clock has changed, in either direction; also starts housekeeping
        if the day has changed."""
        if self._is_shared and not self._committer.guard.is_on:
            return
        now = self._clock.wall_ms()
        if self._is_busy or 0 <= self._retry_at - now < RETRY_MS or hour_of(now, self._zone) == self._snapshot_hour:
            return
        self._is_busy = True
        try:
            self._store.start_day()
        except QueueError as error:
            self._done(None, error)
        else:
            self._pages.start(self._write_snapshot, {"now": now}, self._done)

    def _done(self, now: Any, error: QueueError | None) -> None:
        self._is_busy = False
        if error is None:
            self._snapshot_hour = hour_of(now, self._zone)
        else:
            self._retry_at = self._clock.wall_ms() + RETRY_MS
            log.error("files_by_date_failed", extra=values(error=str(error)))

    def _write_snapshot(self, queues: Queues, given: Given) -> int:
        now: int = given["now"]
        day, hour, is_repeated = hour_of(now, self._zone)
        counts = queues.read(_counts)
        total = {name: sum(of[name] for of in counts.values()) for name in next(iter(counts.values()), {})}
        snapshot = {"at": instant(now), "node": self._node, "total": total, "queues": counts}
        name = f"counts-{hour:02d}{'b' if is_repeated else ''}.json"
        self._files.write_extra_file(day, name, dumps(snapshot) + b"\n")
        if day != self._last_housekeeping_day:
            result = housekeep(self._files.root, queues.read, day, self._keep_days, current=self._current_day)
            self._last_housekeeping_day = day
            log.info("files_by_date_cleaned", extra=values(**housekeeping_document(result, dry_run=False)))
        return now

    def check(self, queues: Queues, given: Given) -> dict[str, Any]:
        read_arguments(given, lambda values: None)
        return check_document(check(self._files.root, queues.read, is_shared=self._is_shared))

    def housekeep(self, queues: Queues, given: Given) -> dict[str, Any]:
        keep, dry_run = read_arguments(
            given,
            lambda values: (values.whole("days", self._keep_days, least=1, most=36_500), values.flag("dry_run", False)),
        )
        today = day_of(self._clock.wall_ms(), self._zone)
        result = housekeep(self._files.root, queues.read, today, keep, dry_run=dry_run, current=self._current_day)
        return housekeeping_document(result, dry_run=dry_run)


def _counts(transaction: Transaction) -> dict[str, dict[str, int]]:
    return {queue: transaction.counts(queue)._asdict() for queue in transaction.queues()}


def housekeeping_document(result: JournalRetention, *, dry_run: bool) -> dict[str, Any]:
    kept = [{"day": one.day, "why": one.why} for one in result.kept]
    return {
        "today": result.today,
        "removed": result.removed,
        "freedBytes": result.freed,
        "kept": kept,
        "dryRun": dry_run,
    }


def check_document(found: JournalCheckResult) -> dict[str, Any]:
    findings = [{"kind": one.kind, "where": one.where, "text": one.text} for one in found.findings]
    return {"files": found.files, "records": found.records, "messages": found.messages, "findings": findings}
