#!/bin/sh
# A browser for the dashboard's tests and pictures: Debian's chromium and its driver, installed if they are not here.
set -eu

here() {
    { command -v chromium || command -v chromium-browser; } >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1
}

if here; then exit 0; fi

if ! command -v apt-get >/dev/null 2>&1; then
    echo "The dashboard's tests need chromium and chromedriver, and there is no apt-get to install them with." >&2
    echo "Install both so that they are found by these names, and run make again." >&2
    exit 1
fi

if [ "$(id -u)" = 0 ]; then
    AS_ROOT=""
elif sudo -n true 2>/dev/null; then
    AS_ROOT="sudo -n"
else
    echo "The dashboard's tests need a browser. Somebody who may, please:" >&2
    echo "    sudo apt-get install --no-install-recommends chromium chromium-driver" >&2
    exit 1
fi

echo "adding the packages chromium and chromium-driver"
export AS_ROOT
apt=$(dirname "$0")/apt.sh
"$apt" update
"$apt" install -y --no-install-recommends chromium chromium-driver >/dev/null
here || { echo "apt-get brought no chromium and chromedriver" >&2; exit 1; }
