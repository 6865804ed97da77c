"""Opening of a store by URL, and the permissions of its files.

Schemes are ``sqlite:queue.db``, ``files:./queues``, ``etcd://h1,h2,h3`` and ``memory:``. An implementation is imported
when its scheme is opened.

``find_wide_permissions`` finds files and folders of a store that other users can reach, for ``check``, ``repair`` and
``health``. Which permissions are too wide is decided by ``fsio.permissions``."""

import stat
from pathlib import Path

from yirangmq.core.consumer_registry import ConsumerRegistry
from yirangmq.core.errors import BadInput, StoreDamaged
from yirangmq.core.policy import RESERVE_BYTES
from yirangmq.core.ports import Clock, Finding, Store
from yirangmq.fsio.permissions import access_in, describe_wide_mode
from yirangmq.stores.lock import lock_path

# -- opening -----------------------------------------------------------------------------------------------------------

SCHEMES = ("sqlite", "files", "etcd", "memory")


def open_store(
    url: str,
    *,
    durability: str = "full",
    served: bool = False,
    read_only: bool = False,
    reserve_bytes: int = RESERVE_BYTES,
) -> Store:
    """Open a store by URL.

    ``served``: the caller is a server that holds the store's lock and is its only writer. ``read_only``: refuse every
    write. ``reserve_bytes``: disk space reserved for draining a full store."""
    scheme, colon, place = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise BadInput(f"{url!r} is not a store; use sqlite:FILE, files:FOLDER, etcd://HOSTS or memory:", field="store")
    if scheme == "memory":
        from yirangmq.stores.memory import MemoryStore

        return MemoryStore()
    if not place:
        raise BadInput(f"the path is missing: {scheme}:PATH", field="store")
    if scheme == "etcd":
        from yirangmq.stores.etcd.store import open_etcd

        return open_etcd(url)
    if read_only:
        from yirangmq.stores.read_only import open_read_only

        return open_read_only(scheme, place, durability)
    if scheme == "sqlite":
        if served:
            from yirangmq.stores.sqlite.server_store import open_served_store

            return open_served_store(Path(place), durability=durability, reserve_bytes=reserve_bytes)
        from yirangmq.stores.sqlite.store import SqliteStore

        return SqliteStore(Path(place), durability=durability, reserve_bytes=reserve_bytes)
    from yirangmq.stores.files.store import FilesStore

    return FilesStore(Path(place), durability=durability, reserve_bytes=reserve_bytes)


def salvage_store(url: str) -> list[Finding]:
    """Salvage a store that is too damaged to be opened: copy all readable data into a new one in its place.

    Raises an error if that is not possible."""
    scheme, _, place = url.partition(":")
    if scheme != "sqlite":
        raise StoreDamaged(f"{place} cannot be repaired without being opened")
    from yirangmq.stores.sqlite.salvage import salvage

    return salvage(Path(place))


def open_consumer_registry(url: str, clock: Clock) -> ConsumerRegistry | None:
    """Open the consumer registry in files beside a store. Return None for a store that other processes cannot open."""
    scheme, _, place = url.partition(":")
    if scheme in ("memory", "etcd"):
        return None
    from yirangmq.stores.consumer_registry import ConsumerRegistryFolder

    return ConsumerRegistryFolder(Path(f"{place.rstrip('/')}.consumers"), clock)


# -- permissions -------------------------------------------------------------------------------------------------------

KIND = "permissions"
FILE_SUFFIXES = ("", "-wal", "-shm", "-redo", ".lock")


def parts_of(url: str) -> list[Path]:
    """List the files and folders of a store that other users must not reach.

    The folder of a SQLite file is included only if a server uses it as its data folder (there is a lock file). Any
    other folder may be a user's own."""
    scheme, _, place = url.partition(":")
    if scheme == "files" and place:
        return [Path(place).absolute()]
    if scheme != "sqlite" or not place:
        return []
    path, lock = Path(place).absolute(), lock_path(url)
    folder = [path.parent] if lock is not None and lock.exists() else []
    return [*folder, *(one for end in FILE_SUFFIXES if (one := Path(f"{path}{end}")).exists())]


def find_wide_permissions(url: str, *, repair: bool = False) -> list[Finding]:
    """Find files and folders of a store with too wide permissions. ``repair``: remove the access of other users."""
    found = []
    for part in parts_of(url):
        text = describe_wide_mode(part)
        if text:
            found.append(Finding(KIND, str(part), text, repair and _tighten(part)))
    return found


def _tighten(part: Path) -> bool:
    try:
        access = access_in(part if part.is_dir() else part.parent)
        wanted = access.folder if part.is_dir() else access.file
        part.chmod(stat.S_IMODE(part.stat().st_mode) & wanted)
    except OSError:
        return False
    return True
