"""``make cluster-demo``: three members of etcd, two nodes, two consumers; the leading node and a member of etcd are
killed while messages flow, and every message is counted. Everything runs on free ports of this machine and ends with
the demo."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cluster.etcds import Etcds
from tests.cluster.parts import at
from tests.cluster.troupe import Troupe, doubled

MESSAGES = 3_000
BEGUN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGUN:5.1f} s  {text}", flush=True)


async def evil(troupe: Troupe) -> None:
    async with at(*troupe.etcds.endpoints) as client:
        leader = await troupe.leader(client)
        say(f"{sum(troupe.seen().values())} messages were worked on; kills {leader}, which leads the queue")
        troupe.kill(leader)
        say(f"{await troupe.leader(client, leader)} leads now")
        member = await asyncio.to_thread(troupe.etcds.leader)
        say(f"kills {member.name}, the leader of etcd itself")
        member.kill()
        after = await asyncio.to_thread(troupe.etcds.leader)
        say(f"{after.name} leads etcd now; starts {member.name} and {leader} again")
        member.start()
        troupe.start_node(leader)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        say("starts three members of etcd")
        with Etcds(Path(folder) / "etcd", 3) as etcds:
            say(
                "starts two nodes and two consumers: yirangmq cluster serve --store etcd://" + ",".join(etcds.endpoints)
            )
            with Troupe(etcds, Path(folder) / "troupe", "demo") as troupe:
                say(f"sends {MESSAGES} messages")
                seen = asyncio.run(troupe.perform(MESSAGES, evil))
                say(
                    f"{len(seen) - 1} of {MESSAGES} were worked on, {doubled(seen)} of them twice; none is left in etcd"
                )
                return 0 if len(seen) - 1 == MESSAGES else 1


if __name__ == "__main__":
    sys.exit(main())
