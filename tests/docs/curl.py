"""The few options of curl that the pages use, for machines without it: ``python tests/docs/curl.py URL …``."""

import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

WITH_VALUE = ("-X", "-H", "-w", "--json", "--data-binary", "--data-urlencode", "--max-time")


def curl_command() -> str:
    """The real one if it is here and knows ``--json``, else this file."""
    real = shutil.which("curl")
    said = subprocess.run([real, "--help", "all"], capture_output=True, text=True, check=True).stdout if real else ""
    ours = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__)))}"
    return "curl" if "--json" in said else ours


def main(words: list[str]) -> int:
    given: dict[str, list[str]] = {name: [] for name in WITH_VALUE}
    [url] = _read(words, given)
    headers = dict(line.split(": ", 1) for line in given["-H"])
    body = [_bytes(text) for text in given["--json"] + given["--data-binary"]]
    if given["--json"]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
    if "-G" in words:
        pairs = dict(text.split("=", 1) for text in given["--data-urlencode"])
        url = f"{url}?{urllib.parse.urlencode(pairs)}"
    method = given["-X"][0] if given["-X"] else "POST" if body else "GET"
    request = urllib.request.Request(url, body[0] if body else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=float(given["--max-time"][0])) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, data = error.code, error.read()
    sys.stdout.buffer.write(data + given["-w"][0].replace("\\n", "\n").replace("%{http_code}", str(status)).encode())
    return 0


def _read(words: list[str], given: dict[str, list[str]]) -> list[str]:
    """What belongs to no option."""
    left, rest = [], iter(words)
    for word in rest:
        if word in given:
            given[word].append(next(rest))
        elif not word.startswith("-"):
            left.append(word)
    return left


def _bytes(text: str) -> bytes:
    if text == "@-":
        return sys.stdin.buffer.read()
    return Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
