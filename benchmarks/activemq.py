"""ActiveMQ from Debian's package, unpacked beside the project, and started on a free port of this machine with a folder
of its own.

Run as a program it fetches; imported it starts the broker, and our server beside it."""

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from debian import check_tools, known, unpack, would_install
from peers_process import Server, free_port

ROOT = Path(__file__).resolve().parent.parent / ".bench-activemq"
SYSTEM = Path("/usr/share/java")
JARS = (
    *("activemq-broker", "activemq-client", "activemq-console", "activemq-jaas", "activemq-kahadb-store"),
    *("activemq-openwire-legacy", "activemq-protobuf", "activemq-stomp", "activemq-spring", "hawtbuf", "slf4j-api"),
    *("geronimo-j2ee-management-1.1-spec", "geronimo-jms-1.1-spec", "geronimo-jms_1.1_spec", "slf4j-nop"),
    *("jackson-annotations", "jackson-core", "jackson-databind", "spring-core", "spring-beans", "spring-context"),
    *("spring-aop", "spring-expression", "xbean-spring", "commons-logging"),
)
"""What a broker with STOMP and KahaDB loads; each from the package, or from the system where it is installed."""
MEMORY = ("-Xms512M", "-Xmx512M")
"""As Debian's package starts it."""


def fetch() -> None:
    """Download the package and what it depends on, and unpack them."""
    check_tools("ActiveMQ")
    unpack(known(lambda: would_install("activemq"), "activemq") or ["activemq"], ROOT)
    print(f"ActiveMQ is in {ROOT}")


def _java() -> str:
    found = shutil.which("java") or next(map(str, (ROOT / "root").glob("usr/lib/jvm/*/bin/java")), None)
    if found is None:
        sys.exit("there is no java on this machine, and none among the packages of ActiveMQ")
    return found


def _class_path() -> str:
    places = (ROOT / "root/usr/share/java", SYSTEM)
    found = [place / f"{name}.jar" for name in JARS for place in places if (place / f"{name}.jar").exists()]
    if not any("activemq-stomp" in str(jar) for jar in found):
        sys.exit(f"ActiveMQ is not in {ROOT}: run 'make bench-gateway'")
    return ":".join(map(str, found))


class StompServer(Server):
    """A server that speaks STOMP at ``address["port"]``."""

    def first_message(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.address["port"]), 5) as line:
            line.sendall(b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0")
            return line.recv(9) == b"CONNECTED"

    def restart(self) -> None:
        """On the same folder and port."""
        self.start_until(self.first_message)


class ActiveMQ(StompServer):
    name = "ActiveMQ"

    def open(self) -> None:
        self.address = self.address or {"port": free_port()}
        where = f"stomp://127.0.0.1:{self.address['port']}"
        options = f"persistent=true&useJmx=false&brokerName=bench&schedulerSupport=true&dataDirectory={self.folder}"
        command = [_java(), *MEMORY, "-cp", _class_path(), f"-Dactivemq.base={self.folder}"]
        self.launch([*command, "org.apache.activemq.console.Main", "start", f"broker:({where})?{options}"], {})


class Ours(StompServer):
    name = "yirangmq"

    def open(self) -> None:
        self.address = self.address or {"port": free_port()}
        words = ["serve", "--data", str(self.folder), "--log-level", "warning", "--http", "off"]
        words += ["--stomp", f"127.0.0.1:{self.address['port']}"]
        self.launch([sys.executable, "-m", "yirangmq", *words], {})

    def policy(self, queue: str, document: dict[str, Any]) -> None:
        import yirangmq

        with yirangmq.connect(f"unix:{self.folder / 'yirangmq.sock'}") as queues:
            queues.set_policy(queue, json.loads(json.dumps(document)))


if __name__ == "__main__":
    fetch()
