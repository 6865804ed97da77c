"""Every import that a page or an example shows works."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import yirangmq
from yirangmq import cluster
from yirangmq.cluster import etcd
from yirangmq.stores import log

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"^\s*from (yirangmq[\w.]*) import ([\w, ]+)", re.MULTILINE)
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
SHOWN = sorted(
    {
        (module, name.strip())
        for page in PAGES
        for module, names in IMPORT.findall(page.read_text())
        for name in names.split(",")
    }
)


@pytest.mark.parametrize(("module", "name"), SHOWN, ids=".".join)
def test_imports_shown_in_the_documents_work(module: str, name: str) -> None:
    if not hasattr(import_module(module), name):
        import_module(f"{module}.{name}")


@pytest.mark.parametrize("package", [yirangmq, cluster, etcd, log], ids=lambda package: str(package.__name__))
def test_lazy_import_of_a_package_loads_its_public_names_on_access(package: object) -> None:
    names = vars(package)["__all__"]
    assert [name for name in names if getattr(package, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(package, "Nothing")  # noqa: B009


def test_imports_are_found_in_the_documents() -> None:
    assert ("yirangmq.cluster", "Producer") in SHOWN
    assert len(SHOWN) > 10
