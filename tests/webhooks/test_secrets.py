from pathlib import Path

import pytest

from yirangmq.core.errors import BadInput, NotFound
from yirangmq.webhooks.webhooks import read_secret


def test_webhook_secret_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "shop").write_bytes(b"  hush \nwhatever\n")
    assert read_secret(tmp_path, "shop") == b"hush"


def test_webhook_secret_missing_empty_or_outside_the_folder_is_rejected_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    with pytest.raises(NotFound, match="shop cannot be read: No such file"):
        read_secret(tmp_path, "shop")
    with pytest.raises(BadInput, match="is empty"):
        read_secret(tmp_path, "empty")
    with pytest.raises(BadInput, match="secret"):
        read_secret(tmp_path, "../shop")
