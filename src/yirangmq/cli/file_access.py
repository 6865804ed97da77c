"""Whether other users may reach what the server keeps: the reasons for ``health``.

Knows: the settings that name files and folders. Does not know: modes; ``fsio.permissions`` does."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from yirangmq.config.config import Config
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.fsio.permissions import GROUP, loose
from yirangmq.stores.open import loose_parts

OTHERS = 0o007


def access_reasons(config: Config) -> Callable[[], list[HealthReason]]:
    """What lies in the data folder is closed by it, whatever its own modes."""
    data = Path(config.data).absolute()
    folders = (config.topics_folder, config.day_files_folder, config.pair_folder, config.secrets_folder)
    outside = [path for one in folders if one and not (path := Path(one).absolute()).is_relative_to(data)]
    place = Path(config.store_url.partition(":")[2]).absolute()
    store = "" if place.is_relative_to(data) else config.store_url
    is_shared = config.file_access == "group"

    def reasons() -> list[HealthReason]:
        texts = [f"{folder} {text}" for folder in (data, *outside) if (text := loose(folder))]
        texts += [f"{finding.where} {finding.text}" for finding in loose_parts(store)]
        texts += [text for path, setting in _secret_files(config) if (text := _open_secret(path, setting))]
        if is_shared and data.is_dir() and data.stat().st_mode & GROUP.folder != GROUP.folder:
            texts.append(f"file_access is group, and the group may not use {data}; run: chmod 2770 {data}")
        return [health_reason("permissions", text) for text in texts]

    return reasons


def _secret_files(config: Config) -> list[tuple[str, str]]:
    """Paths, and the settings that name them."""
    found = [(config.token_file, "token_file"), (config.pair_key_file, "pair_key_file"), (config.tls_key, "tls_key")]
    found += [(rule.token_file, "http_tokens") for rule in config.http_tokens]
    found += [(program.token_file, "programs") for program in config.programs]
    return [(path, setting) for path, setting in found if path]


def _open_secret(path: str, setting: str) -> str:
    """A group may read a secret, as that of the service; others may not."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return ""
    return f"{path} ({setting}) has mode {mode:04o}; run: chmod o= {path}" if mode & OTHERS else ""
