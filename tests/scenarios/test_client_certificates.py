"""Programs known by their client certificates, through every protocol of a whole server."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import stomp

import yirangmq
from tests.support.credentials import certificate
from tests.support.server_process import Daemon, daemon, run_command
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that are their own authorities: the server trusts those of ``gateway`` and ``other``."""
    folder = tmp_path_factory.mktemp("certificates")
    trusted = [certificate(folder, name)[0].read_text() for name in ("gateway", "other")]
    (folder / "clients.pem").write_text("".join(trusted))
    certificate(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Daemon]:
    made, key = certificate(folder)
    programs = [{"name": "A", "certificate": "CN=gateway,O=Yi-Rang", "queues": ["mail"]}]
    listeners = ("--tcp", "localhost:0", "--http", "localhost:0", "--stomp", "localhost:0")
    with daemon(
        folder,
        *listeners,
        *("--tls-cert", str(made), "--tls-key", str(key), "--tls-client-ca", str(folder / "clients.pem")),
        *("--programs", json.dumps(programs), "--routes", json.dumps([{"source": "A", "target": "A"}])),
    ) as server:
        yield server


def address(server: Daemon, scheme: str) -> str:
    found: str = next(one for one in server.ready["addresses"] if one.startswith(scheme))
    return found.replace("127.0.0.1", "localhost").replace("[::1]", "localhost")


def files(folder: Path, name: str) -> dict[str, str]:
    if not name:
        return {"ca": str(certificate(folder)[0])}
    cert, key = certificate(folder, name)
    return {"ca": str(certificate(folder)[0]), "cert": str(cert), "key": str(key)}


def test_client_certificate_over_the_socket_gives_its_program_its_rights_and_refuses_others(
    server: Daemon, folder: Path
) -> None:
    where = address(server, "tls://")
    with yirangmq.connect(where, **files(folder, "gateway")) as queues:  # type: ignore[arg-type]
        queues.publish("mail", b"x")
        with pytest.raises(yirangmq.NotAllowed):
            queues.publish("elsewhere", b"x")
    for name in ("other", ""):
        with pytest.raises(yirangmq.NotAllowed):
            yirangmq.connect(where, **files(folder, name))  # type: ignore[arg-type]
    with pytest.raises(yirangmq.TlsFailed, match="refused the client's certificate"):
        yirangmq.connect(where, **files(folder, "stranger"))  # type: ignore[arg-type]


def test_client_certificate_on_the_command_line_comes_from_options_or_environment(server: Daemon, folder: Path) -> None:
    ca, cert, key = files(folder, "gateway").values()
    line = ("health", "--store", address(server, "tls://"))
    variables = {"YIRANGMQ_CA": ca, "YIRANGMQ_CERT": cert, "YIRANGMQ_KEY": key}
    options = ("--ca", ca, "--cert", cert, "--key", key)
    for known in (run_command(folder, *line, *options), run_command(folder, *line, **variables)):
        assert "program 'A' may not call 'health'" in known.stderr
    refused = run_command(folder, *line, "--ca", ca)
    assert (refused.returncode, "set YIRANGMQ_TOKEN" in refused.stderr) == (9, True), refused


def test_client_certificate_over_http_admits_its_program_and_refuses_others(server: Daemon, folder: Path) -> None:
    def publish(name: str) -> int:
        context = ssl.create_default_context(cafile=files(folder, "")["ca"])
        if name:
            context.load_cert_chain(*certificate(folder, name))
        url = f"{address(server, 'https://')}/v1/queues/mail/messages"
        request = urllib.request.Request(url, b"{}", {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert [publish(name) for name in ("gateway", "other", "")] == [200, 401, 401]


def test_client_certificate_over_stomp_admits_its_program_and_refuses_others(server: Daemon, folder: Path) -> None:
    host, _, port = address(server, "stomp").rpartition("/")[2].rpartition(":")

    def is_let_in(name: str) -> bool:
        where = [(host, int(port))]
        line = stomp.Connection12(where, timeout=PATIENCE, reconnect_attempts_max=1)
        cert, key = (str(file) for file in certificate(folder, name))
        line.set_ssl(where, ca_certs=files(folder, "")["ca"], cert_file=cert, key_file=key)
        try:
            line.connect(wait=True)
            return bool(line.is_connected())
        except stomp.exception.ConnectFailedException:
            return False
        finally:
            line.disconnect()

    assert [is_let_in(name) for name in ("gateway", "other")] == [True, False]


def test_client_certificate_is_shown_in_the_list_of_programs(server: Daemon, folder: Path) -> None:
    found = json.loads(run_command(folder, "programs", "--store", server.address, "--json").stdout)
    assert [row["certificate"] for row in found["programs"]] == ["CN=gateway,O=Yi-Rang"]
