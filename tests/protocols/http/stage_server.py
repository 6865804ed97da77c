"""The stage's routes behind a real socket, as a process: ``python -m tests.protocols.http.stage_server LIMITS``.

``LIMITS`` is a JSON object of ``HttpLimits``. The port is printed; ``GET /self`` tells how the server is, ``POST
/release`` answers all who wait."""

import asyncio
import json
import resource
import sys

from tests.protocols.http.parts import RouteRecorder
from yirangmq.observe.metrics import resident_bytes
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.router import Params
from yirangmq.protocols.http.server import HttpSocketServer, listen_tcp
from yirangmq.protocols.http.types import Exchange, Request, Response

TICK_SECONDS = 0.2


async def main(limits: HttpLimits) -> None:
    stage = RouteRecorder()
    api = stage.routes()
    door = HttpSocketServer(api, limits)

    def tell(request: Request, exchange: Exchange, params: Params) -> None:
        about = {"connections": len(door.connections), "waiting": len(stage.waiting), "held": door.context.held}
        document = {**about, "resident": resident_bytes(), "left": len(stage.left), "closed": door.closed_for}
        exchange.answer(Response(200, json.dumps(document).encode()))

    def release(request: Request, exchange: Exchange, params: Params) -> None:
        for waiting in stage.waiting:
            waiting.answer(Response(200, b"at last"))
        stage.waiting.clear()
        exchange.answer(Response(204, None))

    api.add("GET", "/self", tell)
    api.add("POST", "/release", release)
    server = await listen_tcp(door, ("127.0.0.1", 0))
    print(server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
    while True:
        await asyncio.sleep(TICK_SECONDS)
        door.check_timeouts(asyncio.get_running_loop().time())


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    chosen = HttpLimits(**json.loads(sys.argv[1]))
    if sys.argv[2] == "uvloop":
        from uvloop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main(chosen))
    else:
        asyncio.run(main(chosen))
