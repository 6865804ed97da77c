"""Credentials for tests: a token that the server accepts, and a self-signed certificate for localhost, made by the
``openssl`` command when a test needs one."""

import ssl
import subprocess
from pathlib import Path

TOKEN = "a-token-of-these-tests"
"""At least 16 characters, as the server demands."""


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """(certificate, key) for a server or a client of this name, made once in a folder."""
    stem = "" if name == "localhost" else f"{name}-"
    made, key = folder / f"{stem}cert.pem", folder / f"{stem}key.pem"
    if not made.exists():
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        issued = ["-subj", f"/O=Yi-Rang/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
        if name == "localhost":
            issued = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", str(key), "-out", str(made)]
        subprocess.run([*command.split(), *issued, *files], check=True, capture_output=True)
    return made, key


def server_context(folder: Path, name: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(folder, name))
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate(folder)[0]))
