"""A publisher to be killed: ``python -m tests.scenarios.log_writer FOLDER``. Says each confirmed sequence on a line."""

import sys

from yirangmq.core.topics import NewRecord
from yirangmq.stores.log.log import LogSettings, SegmentLog


def main(folder: str) -> None:
    with SegmentLog(folder, LogSettings(segment_bytes=1 << 15)) as log:
        number = log.last
        while True:
            batch = [NewRecord(f"topic-{n % 3}", b"%d " % n + b"." * (n % 700)) for n in range(number + 1, number + 4)]
            number = log.append(batch).last
            if number % 300 == 0:
                log.trim(max(0, number - 2000))
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
