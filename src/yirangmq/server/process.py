"""Server process: starts a server from its settings, and stops it on a signal.

Before the start it reads secrets from files, sets file modes and umask, makes folders, takes the lock of the store, and
raises the limit of open files. Once the server is ready it tunes the garbage collector and malloc for a long run.

The first SIGTERM or SIGINT stops the server gracefully; a later one terminates the process immediately
(``core.stop_signals``). SIGHUP does nothing: settings are read at the start."""

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from yirangmq.config.config import Config, exposed
from yirangmq.core.access import AccessGrant, check_secret, check_token, grants
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Store
from yirangmq.core.stop_signals import StopSignals, StopStep
from yirangmq.fsio import permissions
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.fsio.input_file import read_input
from yirangmq.observe import logs
from yirangmq.observe.logs import log, values
from yirangmq.server.lifecycle import notify
from yirangmq.server.server import Daemon, Secrets
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.open import open_store

MAX_TOKEN_BYTES = 4096
SPARE_FILES = 64
"""Allowance of open files besides the sockets of clients."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OURS = ("unix:", "tcp:", "tls:")
"""Prefixes of the addresses that serve the native protocol."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt`` in glibc's malloc.h. They are not set if the C library has no ``mallopt``."""
GC_THRESHOLDS = (20_000, 50, 100)
"""Thresholds of the garbage collector. Requests create many short-lived values and hardly any cycles, so collections
are rare. (Measured: the throughput does not change; the pauses of full collections are avoided.)"""


def serve(chosen: Config, announce: Callable[[list[str], str], None]) -> None:
    """Serve until a signal stops the process. ``announce`` is called with the addresses and the durability."""
    logs.start_log(chosen.log_level, chosen.log_format, sys.stderr)
    if chosen.syslog:
        logs.start_syslog(chosen.syslog)
    with contextlib.ExitStack() as stack:
        secrets = _read_secrets(chosen)
        _set_file_modes(chosen)
        _make_folders(chosen)
        lock = StoreLock(chosen.store_url, _holder(chosen, ""))
        stack.callback(lock.close)
        store = _store(chosen)
        stack.callback(lambda: store.close())
        if chosen.day_files_folder:
            from yirangmq.server.journal import open_journaled  # not loaded by a server without files by date

            store = open_journaled(chosen, store)
        _warn_of_clear_text(chosen)
        web = chosen.http_max_connections if chosen.http_address is not None else 0
        stomp = chosen.max_connections if chosen.stomp_address is not None else 0
        _raise_file_limit(chosen.max_connections + web + stomp + SPARE_FILES)

        def ready(addresses: list[str]) -> None:
            lock.write_holder(_holder(chosen, next((one for one in addresses if one.startswith(OURS)), "")))
            _tune_memory()
            notify("READY=1")
            announce(addresses, store.durability())
            about = values(addresses=addresses, store=chosen.store_url, durability=store.durability())
            log.info("server_started", extra=about)

        _run_loop(_serve(lambda: Daemon(chosen, store, secrets), ready))
    log.info("server_stopped")


def _warn_of_clear_text(chosen: Config) -> None:
    """Log a warning for each address that ``insecure`` allows, at every start."""
    for setting, address in exposed(chosen):
        if setting == "feed_tcp" or not chosen.tls_cert:
            log.warning("listening_in_clear_text", extra=values(setting=setting, address=address))


def _store(chosen: Config) -> Store:
    if chosen.is_clustered:
        from yirangmq.server.cluster import store_for  # gRPC is loaded only by a cluster node

        return store_for(chosen)
    return open_store(chosen.store_url, durability=chosen.durability, served=True, reserve_bytes=chosen.reserve_bytes)


async def _serve(make: Callable[[], Daemon], ready: Callable[[list[str]], None]) -> None:
    daemon = make()
    loop = asyncio.get_running_loop()
    signals = Signals(daemon)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signals.stop, number)
    loop.add_signal_handler(signal.SIGHUP, signals.ignore, signal.SIGHUP)
    await daemon.run(ready)


class Signals:
    """Signal handler of the event loop."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._received = StopSignals()

    def stop(self, number: signal.Signals) -> None:
        step = self._received.receive(time.monotonic())
        if step is StopStep.BEGIN:
            log.info("signal_received", extra=values(signal=number.name))
            self._daemon.stop()
        elif step is StopStep.FORCE:
            log.warning("server_stop_forced", extra=values(signal=number.name))
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def ignore(self, number: signal.Signals) -> None:
        """Log SIGHUP, which does nothing: settings are read at the start."""
        log.info("signal_ignored", extra=values(signal=number.name))


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(main)
        return
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


def _tune_memory() -> None:
    """Tune the garbage collector and malloc after the start.

    Objects that exist now are frozen; only later ones are checked for cycles. Memory that the start freed is returned
    to the system.

    A frame of many messages exceeds glibc's threshold for ``mmap``. It would be mapped and unmapped for each frame,
    which costs a busy server a tenth of its time. The thresholds are therefore raised to 4 MiB (``mmap``) and 16 MiB
    (trim)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 4 << 20)
        library.mallopt(M_TRIM_THRESHOLD, 16 << 20)
        library.malloc_trim(0)


# -- before the start -----------------------------------------------------------------------------------------------


def _first_line(path: str, field: str) -> str:
    text = read_input(path, MAX_TOKEN_BYTES, field).decode("utf-8", "replace").strip().partition("\n")[0].strip()
    if not text:
        raise BadInput(f"{path} is empty", field=field)
    return text


def _read_secrets(chosen: Config) -> Secrets:
    """Return the secrets, with those that are read from files."""
    token, pair_key = chosen.token, chosen.pair_key
    if chosen.token_file:
        token = check_token(_first_line(chosen.token_file, "token_file"), "token_file")
    tls = _tls(chosen)
    http = [rule.grant(rule.token or _first_line(rule.token_file, "http_tokens")) for rule in chosen.http_tokens]
    if chosen.pair_key_file:
        pair_key = check_secret(_first_line(chosen.pair_key_file, "pair_key_file"), "pair_key_file")
    in_files = [one for one in chosen.programs if one.token_file]
    tokens = {one.name: check_token(_first_line(one.token_file, "programs"), "programs") for one in in_files}
    everything = [AccessGrant(token)] if token else []
    return Secrets(token, tls, (*everything, *http), pair_key, grants(chosen.programs, chosen.routes, tokens))


def _tls(chosen: Config) -> ssl.SSLContext | None:
    if not chosen.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(chosen.tls_cert, chosen.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{chosen.tls_cert} and {chosen.tls_key} cannot be used: {error}", field="tls_cert") from None
    if chosen.tls_client_ca:
        try:
            context.load_verify_locations(cafile=chosen.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"{chosen.tls_client_ca} cannot be used: {error}", field="tls_client_ca") from None
        context.verify_mode = ssl.CERT_OPTIONAL  # without a certificate a client needs a token; a wrong one fails
    return context


def _set_file_modes(chosen: Config) -> None:
    """Set the default file modes and the umask. The umask applies to files that libraries and hooks create."""
    access = permissions.BY_NAME[chosen.file_access]
    permissions.set_default(access)
    os.umask(0o777 & ~access.folder)


def _make_folders(chosen: Config) -> None:
    scheme, _, where = chosen.store_url.partition(":")
    wanted = [Path(where).absolute().parent] if scheme not in ("memory", "etcd") else [Path(chosen.data).absolute()]
    wanted += [Path(chosen.socket_path).absolute().parent] if chosen.socket_path else []
    wanted += [Path(chosen.http_address).absolute().parent] if isinstance(chosen.http_address, str) else []
    for folder in wanted:
        make_folder(folder)


def _holder(chosen: Config, address: str) -> Holder:
    return Holder(os.getpid(), address, chosen.node_name, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")


def _raise_file_limit(wanted: int) -> None:
    """Raise the limit of open files to ``wanted``, at most to the hard limit. Log a warning if that is too low."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = 0
    if most < wanted:
        log.warning("open_file_limit_too_low", extra=values(wanted=wanted))
