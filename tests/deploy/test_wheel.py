"""The wheel and the sdist: what they hold, what their metadata says, and that one builds the other."""

import email
import os
import re
import subprocess
import sys
import tarfile
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.source_tree import ROOT, source_files


def build(source: Path, target: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [root] = folder.iterdir()
    return root


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


def test_sdist_holds_every_file_of_the_source(unpacked: Path) -> None:
    held = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert [name for name in source_files() if name not in held] == []


def test_sdist_keeps_programs_executable(unpacked: Path) -> None:
    programs = [name for name in source_files() if os.access(ROOT / name, os.X_OK)]
    assert programs
    assert [name for name in programs if not os.access(unpacked / name, os.X_OK)] == []


def test_sdist_builds_the_same_wheel_as_the_source(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    again = build(unpacked, tmp_path, "wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_sdist_can_run_its_own_tests(unpacked: Path) -> None:
    """All modules of tests are collected, and those of the core and of the pages run on the code of the sdist."""
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-c", "import yirangmq; print(yirangmq.__file__)"]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(unpacked / "src/yirangmq/__init__.py")
    for arguments in (["--collect-only", "-m", ""], ["tests/core", "tests/docs/test_pages.py"]):
        done = subprocess.run(
            [*pytest_command, *arguments], cwd=unpacked, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-5000:]


def test_wheel_holds_the_package_the_module_for_spark_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {name.removeprefix("src/") for name in source_files() if name.startswith("src/")}
    assert package - held == set()
    assert {name.partition("/")[0] for name in held} == {"yirangmq", "pyspark_yirangmq.py"}


def test_wheel_size_and_that_of_its_files_are_stated(wheel: Path) -> None:
    """Part L, "Must hold": the base install is below 20 MB without our own code, the package itself stated."""
    with ZipFile(wheel) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    for page in ("docs/decisions/0001-dependencies.md", "docs/guides/packages.md"):
        [stated] = re.findall(r"the package itself adds ([\d.]+) MB", (ROOT / page).read_text(), re.IGNORECASE)
        assert size / 1e6 == pytest.approx(float(stated), rel=0.1), page
    [stated] = re.findall(r"Its wheel has ([\d.]+) MB", (ROOT / "docs/decisions/0001-dependencies.md").read_text())
    assert wheel.stat().st_size / 1e6 == pytest.approx(float(stated), rel=0.1)


def test_wheel_metadata_has_the_readme_and_names_no_host(metadata: Message) -> None:
    """The project has no home page: there is no URL that would be true."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("MIT", ["LICENSE"])


def test_wheel_metadata_uses_known_classifiers_that_agree_with_requires_python(metadata: Message) -> None:
    from trove_classifiers import classifiers

    stated = metadata.get_all("Classifier", [])
    assert [name for name in stated if name not in classifiers] == []
    versions = sorted(name.rpartition(" ")[2] for name in stated if "Python :: 3." in name)
    assert metadata["Requires-Python"] == f">={versions[0]}"
