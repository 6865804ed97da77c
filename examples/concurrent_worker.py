"""A worker with four threads: four handlers run at the same time; a stop lets them finish and returns the rest.

    python examples/concurrent_worker.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock. See worker.py for errors and time limits."""

import sys
import threading

import yirangmq
from yirangmq import Consumer

THREADS = 4

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish_many("pictures", range(20))
        consumer = Consumer(queues, concurrency=THREADS)

        def stop():
            print(f"{THREADS} handlers run at the same time")
            consumer.stop()  # as SIGTERM does: running handlers finish, other messages go back

        together = threading.Barrier(THREADS, action=stop)

        @consumer.handler("pictures")
        def resize(delivery):
            together.wait(timeout=30)  # until four handlers are here

        summary = consumer.run()
        print(f"{summary.done} done, {queues.counts('pictures').ready} back in the queue")
        queues.purge("pictures", all=True)
