"""Local Spark cluster: a standalone master and workers on loopback, from the pip package, for trials.

Jobs run in separate processes and are sent over sockets, as on a real cluster. The executors inherit no Python settings
from this process: code must be installed or come from the driver. At the end all processes are killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from yirangmq.core.errors import MissingExtra, Unavailable
from yirangmq.pipeline.environment import find_java

TIMEOUT_SECONDS = 300.0
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
}
"""Settings of a session on such a cluster."""


class LocalCluster:
    """Spark cluster that runs inside a ``with`` block.

    Logs and work files are in ``folder``. ``environment`` is added to the environment of the executors."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        *,
        cores: int = 1,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._environment = dict(environment or {})
        self._wanted = workers
        self._cores, self._memory = cores, memory
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def settings(self) -> dict[str, str]:
        return {**SETTINGS, "spark.cores.max": str(self._wanted * self._cores)}

    def __enter__(self) -> "LocalCluster":
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master", "master.Master", "--port", str(self._port), "--webui-port", "0")
            self._wait_until(lambda: "I have been elected leader" in self._log("master"), "the master")
            for number in range(self._wanted):
                name = f"worker-{number}"
                self._start(
                    name, "worker.Worker", self.master, "--cores", str(self._cores), "--memory", self._memory,
                    "--work-dir", str(self._folder / name), "--webui-port", "0",
                )  # fmt: skip
            self._wait_until(lambda: self._log("master").count("Registering worker") >= self._wanted, "the workers")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers before the master: a worker that loses its master keeps looking for it for a while."""
        for daemon in reversed(self._daemons):
            try:
                os.killpg(daemon.pid, signal.SIGKILL)  # its executors and their Python too
            except ProcessLookupError:
                continue
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    def executors(self) -> list[int]:
        """Return the process ids of the Java processes that run tasks now."""
        found = []
        groups = {daemon.pid for daemon in self._daemons}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                is_ours = os.getpgid(int(path.name)) in groups
            except (OSError, ProcessLookupError):
                continue
            if is_ours and any(b"CoarseGrainedExecutorBackend" in word for word in words):
                found.append(int(path.name))
        return found

    def _start(self, name: str, kind: str, *words: str) -> None:
        home = spark_home()
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *words]
        process_environment = {**_environment(home), **self._environment}
        with (self._folder / f"{name}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=process_environment, start_new_session=True)
            )

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not is_so():
            exited = any(daemon.poll() is not None for daemon in self._daemons)
            if exited or time.monotonic() > end:
                raise Unavailable(f"{what} of the Spark cluster did not start; see the logs in {self._folder}")
            time.sleep(0.05)


def spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingExtra("Spark is not installed; pip install 'yirangmq[spark]'")
    return Path(found.origin).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _environment(home: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment without our Python settings: executors must use code from the driver, or installed code."""
    kept = {name: value for name, value in base.items() if not re.match(r"SPARK_|PYSPARK_|PYTHONPATH$", name)}
    return {
        **kept,
        "JAVA_HOME": str(find_java(base).home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
