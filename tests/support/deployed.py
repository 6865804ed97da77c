"""Servers started from the files below ``deploy/``: addresses and folders are replaced, and nothing else of them."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.alerts.smtp import MailServer, mail_server
from tests.support.credentials import certificate, client_context, server_context
from tests.support.etcd import EtcdMember
from tests.support.loop_thread import OnThread
from tests.support.ports import free_port
from tests.support.server_process import Daemon, until
from tests.support.stomp_load import Place
from tests.support.stomp_server import LiveClient
from tests.support.wait import PATIENCE
from yirangmq.cli.commands.token import new_token

DEPLOY = Path(__file__).parents[2] / "deploy"
NODE_ADDRESS = re.compile(r"\b10\.0\.0\.(\d+):(\d+)")
PROGRAM_ADDRESS = re.compile(r"\b10\.0\.(\d+\.\d+)\b")
PROGRAMS = {"ATMH": "127.0.1.11", "JETCO": "127.0.2.11", "EPSCO": "127.0.3.11"}
STRANGER = "127.0.9.9"
MAIL_LOGIN = ("gateway", "the password of the mail account")


class Gateway:
    """Both nodes of a gateway, in a folder that stands for ``/etc``, ``/var``, ``/srv`` and ``/usr``."""

    def __init__(self, name: str, root: Path, mail: MailServer) -> None:
        self.root = root
        self.mail = mail
        self.ports: dict[tuple[str, str], int] = {}
        self.certificate, key = certificate(root)
        self._fill(name, key)
        self.nodes = {number: self._node(name, number) for number in ("1", "2")}

    def _fill(self, name: str, key: Path) -> None:
        """What the README of the gateway says to install."""
        for folder in ("etc/yirangmq/secrets", "etc/etcd", "srv/yirangmq-witness", "usr/local/bin", "bin"):
            (self.root / folder).mkdir(parents=True)
        etc = self.root / "etc" / "yirangmq"
        for number in ("1", "2"):
            shutil.copy(self.certificate, etc / f"gateway-{number}.crt")
            shutil.copy(key, etc / f"gateway-{number}.key")
        self.tokens = {program: new_token() for program in (*PROGRAMS, "operator")}
        secrets = {f"{program.lower()}.token": text for program, text in self.tokens.items()}
        for file, text in {**secrets, "pair.key": new_token(), "secrets/smtp": MAIL_LOGIN[1]}.items():
            (etc / file).write_text(text + "\n")
        for file in ("member", "etcd-client"):  # the authority of etcd has signed itself, and stands for all
            shutil.copy(self.certificate, self._etcd_path(f"{file}.crt"))
            shutil.copy(key, self._etcd_path(f"{file}.key"))
        for file in ("ca.crt", "etcd-ca.crt"):
            shutil.copy(self.certificate, self._etcd_path(file))
        for path in etc.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        shutil.copy(DEPLOY / "pair" / "yirangmq-alert", self.root / "usr/local/bin/yirangmq-alert")
        logger = self.root / "bin" / "logger"  # syslog, as a file
        logger.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {self.root / "syslog"}\n')
        logger.chmod(0o755)

    def _etcd_path(self, file: str) -> Path:
        return self.root / "etc" / ("yirangmq" if file.startswith("etcd") else "etcd") / file

    def member(self, name: str, number: str) -> EtcdMember:
        """The member of etcd on a machine, by its file of settings."""
        settings = self.root / f"etcd-{number}.yaml"
        settings.write_text(
            self._here((DEPLOY / name / f"etcd-{number}.yaml").read_text(), self.root / f"etcd-{number}")
        )
        client, peer = (f"https://127.0.0.1:{self.port(number, port)}" for port in ("2379", "2380"))
        return EtcdMember(
            f"gateway-{number}", self.root, client, peer, ("--config-file", str(settings)), file_only=True
        )

    def _here(self, text: str, home: Path) -> str:
        """A file of settings with the addresses and folders of this machine."""
        text = NODE_ADDRESS.sub(lambda found: f"127.0.0.1:{self.port(found[1], found[2])}", text)
        text = PROGRAM_ADDRESS.sub(r"127.0.\1", text)
        text = text.replace("/var/lib/yirangmq", str(home / "d")).replace("/var/lib/etcd", str(home))
        text = text.replace("/etc/ssl/certs/ca-certificates.crt", str(self.certificate))
        for folder in ("/etc/yirangmq", "/etc/etcd", "/srv/", "/usr/"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text.replace('"mail.example.org", "port": 587', f'"localhost", "port": {self.mail.port}')

    def _node(self, name: str, number: str) -> Daemon:
        home = self.root / f"node-{number}"
        home.mkdir()
        text = self._here((DEPLOY / name / f"gateway-{number}.json").read_text(), home)
        file = home / "gateway.json"
        file.write_text(text)
        return Daemon(home, "--config", str(file), data="")

    def port(self, number: str, port: str) -> int:
        """The port here that stands for one of a node."""
        if (number, port) not in self.ports:
            self.ports[number, port] = free_port()
        return self.ports[number, port]

    def start(self, number: str, **env: str) -> Daemon:
        return self.nodes[number].start(PATH=f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}", **env)

    def client(self, number: str, program: str, *, source: str = "", **options: Any) -> LiveClient:
        """A STOMP connection of a program, from its address and with its token, to one node."""
        address = source or PROGRAMS[program]
        client = LiveClient(self.port(number, "61613"), bind_host_port=(address, 0), timeout=30, **options)
        client.line.set_ssl([("127.0.0.1", self.port(number, "61613"))], ca_certs=str(self.certificate))
        return client.connect(username=program, passcode=self.tokens[program])

    def wait_for_stomp(self, number: str) -> None:
        """Until a node listens for STOMP, which it does a moment after it became active."""

        def is_open() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port(number, "61613"))) == 0

        until(is_open, PATIENCE)

    def place(self, program: str) -> Place:
        """Where a program finds both nodes."""
        ports = tuple(self.port(number, "61613") for number in ("1", "2"))
        tls = client_context(self.root)
        return Place(ports, self.tokens[program], PROGRAMS[program], tls)

    @property
    def pages(self) -> list[str]:
        """What the alert command has written to syslog."""
        path = self.root / "syslog"
        return path.read_text().splitlines() if path.exists() else []

    def records(self, number: str) -> list[tuple[str, dict[str, Any]]]:
        """(day folder, record) of the files by date of a node, in their order; a line without an end is left out."""
        root = self.root / f"node-{number}" / "d" / "by-date"
        paths = sorted(root.glob("*/*.jsonl"), key=lambda path: path.name)
        whole = [(path.parent.name, path.read_bytes().split(b"\n")[:-1]) for path in paths]
        return [(day, json.loads(line)) for day, lines in whole for line in lines]


@contextmanager
def gateway(name: str, root: Path) -> Iterator[Gateway]:
    found: list[MailServer] = []

    async def serve_mail(up: Callable[[], None], over: asyncio.Event) -> None:
        certificate(root)
        async with mail_server(server_context(root), MAIL_LOGIN) as mail:
            found.append(mail)
            up()
            await over.wait()

    thread = OnThread(serve_mail)
    thread.start()
    made = None
    try:
        made = Gateway(name, root, found[0])
        yield made
    except BaseException:
        for node in () if made is None else made.nodes.values():
            with suppress(OSError):
                sys.stderr.write(node.log.read_text()[-3000:])
        raise
    finally:
        for node in () if made is None else made.nodes.values():
            node.kill()
        thread.stop()
