"""A client of etcd that counts its requests and its bytes: what it sends, the answers, and what its watches bring."""

from typing import Any

from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import DELETE, PUT, TXN
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.etcd.watch import EtcdWatch


class CountingEtcd(Etcd):
    """``writes`` has the size of each call that may change something; the other counters are sums in bytes."""

    def __init__(self, address: EtcdAddress) -> None:
        super().__init__(address)
        self.writes: list[int] = []
        self.calls = 0
        self.sent = 0
        self.answered = 0
        self.watched = 0
        call = self.connection.call

        async def counted(method: Any, request: Any, **more: Any) -> Any:
            self.calls += 1
            self.sent += request.ByteSize()
            if method in (PUT, DELETE) or (method is TXN and _writes(request)):
                self.writes.append(request.ByteSize())
            answer = await call(method, request, **more)
            self.answered += answer.ByteSize()
            return answer

        self.connection.call = counted  # type: ignore[method-assign]

    def watch(self, *words: Any, **how: Any) -> EtcdWatch:
        made = super().watch(*words, **how)
        check = made._check

        def counted(answer: Any) -> None:
            self.watched += answer.ByteSize()
            check(answer)

        made._check = counted  # type: ignore[method-assign]
        return made

    def totals(self) -> dict[str, int]:
        return {"calls": self.calls, "sent": self.sent, "answered": self.answered, "watched": self.watched}


def _writes(request: Any) -> bool:
    return any(not one.HasField("request_range") for one in request.success)
