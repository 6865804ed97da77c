"""A certificate for localhost that is its own authority, made by the ``openssl`` command when a test needs one."""

import ssl
import subprocess
from pathlib import Path


def certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key), made once in a folder."""
    made, key = folder / "cert.pem", folder / "key.pem"
    if not made.exists():
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        )
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", str(key), "-out", str(made)]
        subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return made, key


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(folder))
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate(folder)[0]))
