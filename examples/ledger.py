"""Follow a topic under a name and keep every record in a file; end when nothing came for two seconds.

    python examples/ledger.py unix:yirang-data/yirangmq.sock trades ledger.txt

Stop it, kill it, start it again: it goes on with the first record that it has not confirmed. A record is confirmed
after it was written, so those of the last read may be written twice; their sequences tell."""

import os
import sys
from pathlib import Path

import yirangmq

if __name__ == "__main__":
    address, topic, path = sys.argv[1:]
    with (
        yirangmq.connect(address) as client,
        Path(path).open("a") as ledger,
        client.topics.subscribe(topic, name="ledger", start="beginning", idle=2) as records,
    ):
        for batch in records.batches():
            for record in batch:
                print(record.sequence, record.topic, record.value(), file=ledger)
            ledger.flush()
            os.fsync(ledger.fileno())
        print(f"{records.state}, {records.lag} behind")
