"""A consumer as a process of its own: it takes from several queues, tells what it got, and never acks."""

import sys

from yirangmq.client.connect import connect


def main(address: str, queues: list[str]) -> None:
    clients = [connect(address, consumer="doomed") for _ in queues]
    for queue, client in zip(queues, clients, strict=True):
        first = next(client.subscribe(queue, 2))
        print(queue, first.id, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
