"""Lists of any length: a page at a time, as fast as the client takes it. Many at once, and none holds up another.

Knows: pages, the two forms of a list. Does not know: what is listed."""

from collections.abc import Callable, Sequence

from yirangmq.core.ports import Transaction
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Outlet
from yirangmq.doors.http.mq.accept import LINES
from yirangmq.doors.http.mq.spaces import namespace_of
from yirangmq.format.json_codec import dumps
from yirangmq.observe.logs import log

QUEUES_PER_PAGE = 200
Page = Callable[[Transaction, str], tuple[Sequence[str], str]]
"""(transaction, cursor) → texts, and the cursor to go on with; "" begins, and says that this was the last one."""


class Listing:
    """``exchange.Stream`` of texts: a JSON array, or a line for each and no newline at the end."""

    def __init__(self, house: House, form: str, page: Page) -> None:
        self._house = house
        self._page = page
        self._begin, self._between, self._end = (b"", b"\n", b"") if form == LINES else (b"[", b",", b"]")
        self._cursor = ""
        self._is_over = False

    def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._next()

    def drained(self) -> None:
        self._next()

    def gone(self) -> None:
        self._is_over = True

    def _next(self) -> None:
        texts, self._cursor = self._house.desk.read(lambda transaction: self._page(transaction, self._cursor))
        piece = self._between.join([dumps(text) for text in texts])
        if piece:
            piece, self._begin = self._begin + piece, self._between
        if self._cursor:
            if self._outlet.write(piece):
                self._house.desk.later(0, self._go_on)
            return
        self._is_over = True
        if self._begin is not self._between:  # there was nothing at all
            piece = self._begin
        self._outlet.write(piece + self._end)
        self._outlet.end()

    def _go_on(self) -> None:
        if self._is_over:
            return
        try:
            self._next()
        except Exception:
            log.exception("a list could not be read to its end")
            self._outlet.fail()


def queues_page(is_wanted: Callable[[Transaction, str], bool]) -> Page:
    """The namespaces of the queues that are wanted, in the order of their names."""

    def page(transaction: Transaction, cursor: str) -> tuple[Sequence[str], str]:
        queues = transaction.queues(cursor, QUEUES_PER_PAGE)
        wanted = [queue for queue in queues if is_wanted(transaction, queue)]
        known = [namespace_of(transaction, queue) for queue in wanted]
        return [name for name in known if name is not None], queues[-1] if len(queues) == QUEUES_PER_PAGE else ""

    return page
