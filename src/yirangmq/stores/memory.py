"""Messages in this process's memory, for tests. Knows: dicts and sorted lists. Does not know: disks."""

from collections.abc import Iterator
from contextlib import contextmanager

from yirangmq.core.errors import StoreError
from yirangmq.core.ports import Finding
from yirangmq.stores.memory_state import Edit, MemoryState
from yirangmq.stores.memory_transaction import MemoryTransaction


class MemoryStore:
    """``core.ports.Store`` on a ``MemoryState``; several may be open on the same one."""

    def __init__(self, state: MemoryState | None = None) -> None:
        self.state = MemoryState() if state is None else state
        self._seen = self.state.version
        self._closed = False

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[MemoryTransaction]:
        if self._closed:
            raise StoreError("the store is closed")
        with self.state.lock:
            edit = Edit()
            try:
                yield MemoryTransaction(self.state, edit)
                if edit.has_changed and not write:
                    raise StoreError("a transaction for reading has changed something")
            except BaseException:
                edit.undo()
                raise
        if edit.has_changed:
            with self.state.news:
                self.state.version += 1
                self.state.news.notify_all()

    def wait(self, timeout: float) -> None:
        with self.state.news:
            self.state.news.wait_for(lambda: self.state.version != self._seen, timeout)
            self._seen = self.state.version

    def check(self, *, repair: bool) -> Iterator[Finding]:
        """Recount. Nothing else can go wrong here that a process would survive."""
        with self.transaction() as work:
            findings = [
                Finding("counter", queue, f"counted {kept}, found {true}", mended=repair)
                for queue, kept in self.state.counts.items()
                if kept != (true := work.recount(queue))
            ]
            if repair:
                for finding in findings:
                    self.state.counts[finding.where] = work.recount(finding.where)
        yield from findings

    def durability(self) -> str:
        return "none"

    def close(self) -> None:
        self._closed = True
