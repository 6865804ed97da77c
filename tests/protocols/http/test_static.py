"""The dashboard's files, as a browser gets them."""

import gzip
import re
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.http_api import Line
from yirangmq.core.errors import QueueError
from yirangmq.core.message import MEANING as REASONS
from yirangmq.core.states import MEANING as STATES
from yirangmq.protocols.http import static
from yirangmq.protocols.http.router import HandlerRoutes
from yirangmq.protocols.http.types import Request, Response

FOLDER = Path(static.__file__).parents[2] / "dashboard"


def refuse(error: QueueError) -> Response:
    return Response(400, str(error).encode())


def ask(path: str, method: str = "GET", **headers: str) -> Line:
    api = HandlerRoutes(refuse)
    static.add_dashboard(api)
    line = Line()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    api.find(method, path).handle(Request(method, path, "", given, b"", "127.0.0.1:1"), line)
    return line


def test_dashboard_page_is_at_the_root_with_a_content_security_policy() -> None:
    page = ask("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.body == (FOLDER / "index.html").read_bytes()
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"


def test_dashboard_icon_is_served_as_favicon() -> None:
    assert ask("/favicon.ico").body == (FOLDER / "icon.svg").read_bytes()
    assert ask("/favicon.ico").headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize("name", static.names())
def test_dashboard_files_are_served_with_their_content_types(name: str) -> None:
    answer = ask(f"/dashboard/{name}")
    assert answer.status == 200
    assert answer.headers["content-type"] == static.TYPES[name[name.rindex(".") :]]
    if name != static.PAGES_MODULE:
        assert answer.body == (FOLDER / name).read_bytes()


VENDORED = {
    "uPlot.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the files of the npm package ``uplot`` 1.6.32; see docs/decisions/0025-chart-library.md."""


def test_dashboard_files_of_other_projects_are_unchanged_and_have_their_licence() -> None:
    found = {one.name: sha256(one.read_bytes()).hexdigest() for one in (FOLDER / "vendor").iterdir()}
    assert found.pop("README.md")
    assert found == VENDORED
    assert "MIT" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text()
    assert ask("/dashboard/vendor/uPlot.js").status == 200


def test_content_encoding_gzip_is_used_for_dashboard_files_if_accepted() -> None:
    packed = ask("/dashboard/style.css", accept_encoding="gzip, deflate, br")
    plain = ask("/dashboard/style.css")
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"


def test_etag_match_is_answered_304() -> None:
    first = ask("/", accept_encoding="gzip")
    again = ask("/", accept_encoding="gzip", if_none_match=f'"other", {first.headers["etag"]}')
    assert again.status == 304
    assert again.body == b""
    assert again.headers["etag"] == first.headers["etag"]
    assert ask("/", accept_encoding="gzip", if_none_match='"other"').status == 200
    assert ask("/", if_none_match=first.headers["etag"]).status == 200


@pytest.mark.parametrize(
    "path", ["/dashboard/", "/dashboard/nothing.js", "/dashboard/../assets.py", "/dashboard/%2e%2e/assets.py", "/x"]
)
def test_dashboard_unknown_path_is_answered_404(path: str) -> None:
    assert ask(path).status == 404


def test_dashboard_methods_other_than_get_are_rejected_with_405() -> None:
    answer = ask("/", "POST")
    assert answer.status == 405
    assert "GET" in answer.headers["allow"]


def test_dashboard_page_list_contains_every_page_file() -> None:
    listing = ask("/dashboard/pages.js").body.decode()
    pages = sorted(file.name for file in (FOLDER / "pages").glob("*.js"))
    assert re.findall(r'from "\./pages/(.*)"', listing) == pages


def test_dashboard_files_refer_to_no_other_site() -> None:
    for file in FOLDER.rglob("*.*"):
        text = file.read_text()
        text = re.sub(r"\A/\*.*?\*/", "", text, flags=re.DOTALL) if file.parent.name == "vendor" else text
        found = re.findall(r"""(?:https?:)?//[a-z][^\s"'`)]*""", re.sub(r"(?m)^\s*//.*$", "", text))
        assert [address for address in found if "www.w3.org" not in address] == [], file


def test_dashboard_scripts_never_turn_data_into_markup() -> None:
    for file in FOLDER.rglob("*.js"):
        text = file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, (file, word)


def test_dashboard_states_and_reasons_equal_those_of_the_core_in_order() -> None:
    text = (FOLDER / "states.js").read_text()
    tables = dict(re.findall(r"export const (STATES|REASONS) = \{\n(.*?)\n\};", text, re.DOTALL))
    said = {name: re.findall(r'  (\w+): "(.*)",', body) for name, body in tables.items()}
    assert said["STATES"] == [(state.value, about) for state, about in STATES.items()]
    assert said["REASONS"] == [(reason.value, about) for reason, about in REASONS.items()]
