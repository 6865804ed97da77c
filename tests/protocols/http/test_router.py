"""Which path leads where, and which tricks lead nowhere."""

import pytest

from tests.protocols.http.parts import refuse
from yirangmq.core.errors import BadInput
from yirangmq.protocols.http.router import HandlerRoutes, MountedRoutes, Params, decoded
from yirangmq.protocols.http.types import Exchange, Request, Response


class Caught:
    """An exchange that keeps its answer."""

    is_disconnected = False

    def __init__(self) -> None:
        self.response: Response | None = None

    def answer(self, response: Response) -> None:
        self.response = response

    def on_disconnect(self, action: object) -> None:
        raise AssertionError


def api(name: str, *templates: tuple[str, str]) -> HandlerRoutes:
    """Each route answers with the API's name, its template and its values."""
    made = HandlerRoutes(refuse)
    for method, template in templates:

        def answer(request: Request, exchange: Exchange, params: Params, shown: str = template) -> None:
            exchange.answer(Response(200, repr((name, request.method, shown, params)).encode()))

        made.add(method, template, answer, max_body=7)
    return made


def ask(routes: HandlerRoutes | MountedRoutes, method: str, path: str) -> Response:
    exchange = Caught()
    routes.find(method, path).handle(Request(method, path, "", {}, b"", "test:1"), exchange)
    assert exchange.response is not None
    return exchange.response


def found(routes: HandlerRoutes | MountedRoutes, method: str, path: str) -> tuple[object, ...]:
    response = ask(routes, method, path)
    assert response.status == 200, response
    assert response.body is not None
    value = eval(response.body)
    assert isinstance(value, tuple)
    return value


MQ = api(
    "mq",
    ("GET", "/mq"),
    ("GET", "/mq/{namespace}/stats"),
    ("GET", "/mq/{namespace}/messages"),
    ("POST", "/mq/{namespace}/messages"),
    ("PUT", "/mq/{namespace}/messages/{id}"),
    ("PATCH", "/mq/{namespace}/messages/{id}/complete"),
    ("PATCH", "/mq/{namespace}/failed-messages/renew"),
    ("DELETE", "/mq/{namespace}"),
)


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("GET", "/mq", ()),
        ("GET", "/mq/mail/stats", ("mail",)),
        ("GET", "/mq//stats", ("",)),
        ("DELETE", "/mq/", ("",)),
        ("PUT", "/mq//messages/", ("", "")),
        ("PUT", "/mq/a/messages/b", ("a", "b")),
        ("GET", "/mq/stats/stats", ("stats",)),
        ("GET", "/mq/a%2Fb/stats", ("a/b",)),
        ("GET", "/mq/a%2fb/stats", ("a/b",)),
        ("GET", "/mq/../stats", ("..",)),
        ("GET", "/mq/%2e%2e/stats", ("..",)),
        ("GET", "/mq/./stats", (".",)),
        ("GET", "/mq/%E6%97%A5/stats", ("日",)),
        ("GET", "/mq/a+b/stats", ("a+b",)),
        ("GET", "/mq/a%252Fb/stats", ("a%2Fb",)),
        ("GET", "/mq/a/%73tats", ("a",)),
    ],
)
def test_router_finds_the_route_of_a_path_with_its_parameters(method: str, path: str, params: Params) -> None:
    assert found(MQ, method, path)[3] == params


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/MQ/mail/stats", 404),
        ("GET", "/mq/mail/Stats", 404),
        ("GET", "/mq/mail/stats/", 404),
        ("GET", "/mq/mail//stats", 404),
        ("GET", "/mq/mail/../mail/stats", 404),
        ("GET", "/mq/mail%2Fstats", 405),  # a namespace with a slash in it, which takes only DELETE
        ("GET", "//mq/mail/stats", 404),
        ("GET", "/", 404),
        ("GET", "/mq/mail\\stats", 405),
        ("GET", "/mq/mail/stats;x=1", 404),
        ("GET", "/mq/%00/stats", 400),
        ("GET", "/mq/a%00/stats", 400),
        ("GET", "/mq/%/stats", 400),
        ("GET", "/mq/%4/stats", 400),
        ("GET", "/mq/%zz/stats", 400),
        ("GET", "/mq/%+1/stats", 400),
        ("GET", "/mq/%ff/stats", 400),
        ("GET", "/mq/%c0%af/stats", 400),
        ("GET", "/mq/%ed%a0%80/stats", 400),
        ("GET", "/mq/%e6%97/stats", 400),
        ("PUT", "/mq/mail/stats", 405),
    ],
)
def test_router_rejects_malformed_and_nearly_matching_paths(method: str, path: str, status: int) -> None:
    assert ask(MQ, method, path).status == status


def test_router_prefers_names_to_parameters_without_backtracking() -> None:
    routes = api("a", ("GET", "/x/{y}/z"), ("GET", "/x/name/other"), ("GET", "/x/{y}/{z}/deep"))
    assert found(routes, "GET", "/x/name/other")[2:] == ("/x/name/other", ())
    assert found(routes, "GET", "/x/y/z")[2:] == ("/x/{y}/z", ("y",))
    assert found(routes, "GET", "/x/y/other/deep")[2:] == ("/x/{y}/{z}/deep", ("y", "other"))
    assert ask(routes, "GET", "/x/name/z").status == 404
    assert ask(routes, "GET", "/x/name").status == 404


def test_router_answers_405_with_the_allowed_methods() -> None:
    response = ask(MQ, "PATCH", "/mq/mail/messages")
    assert (response.status, dict(response.headers)["allow"]) == (405, "GET, HEAD, OPTIONS, POST")
    options = ask(MQ, "OPTIONS", "/mq/mail/messages")
    assert (options.status, dict(options.headers)["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    assert ask(MQ, "OPTIONS", "/nowhere").status == 404


def test_router_sends_head_to_the_get_handler_or_its_own() -> None:
    def get(request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(200, request.method.encode()))

    def head(request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(204, None))

    routes = HandlerRoutes(refuse)
    routes.add("GET", "/safe", get)
    routes.add("GET", "/takes", get, head=head)
    assert ask(routes, "HEAD", "/safe").body == b"HEAD"
    assert ask(routes, "HEAD", "/takes").status == 204
    assert ask(routes, "GET", "/takes").body == b"GET"


def test_router_lets_an_api_answer_every_preflight_itself() -> None:
    def options(request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(204, None, (("access-control-allow-origin", "*"),)))

    routes = HandlerRoutes(refuse, options=options)
    routes.add("GET", "/a", options)
    for path in ("/a", "/b"):
        assert ask(routes, "OPTIONS", path).headers == (("access-control-allow-origin", "*"),)


def test_router_mounts_apis_by_prefix_each_with_its_own_errors() -> None:
    mounts = MountedRoutes(api("rest", ("GET", "/health"), ("GET", "/mqtt")))
    mounts.mount("/mq", MQ)
    mounts.mount("/v1/inner", api("inner", ("GET", "/v1/inner/x")))
    mounts.mount("/v1", HandlerRoutes(refuse, lambda method, path, allow: Response(404, b"v1 says no")))
    assert found(mounts, "GET", "/mq")[0] == "mq"
    assert found(mounts, "GET", "/mq/a/stats")[0] == "mq"
    assert found(mounts, "GET", "/mqtt")[0] == "rest"
    assert found(mounts, "GET", "/health")[0] == "rest"
    assert found(mounts, "GET", "/v1/inner/x")[0] == "inner"
    assert ask(mounts, "GET", "/v1/innermost").body == b"v1 says no"
    assert ask(mounts, "GET", "/v1").body == b"v1 says no"
    assert ask(mounts, "GET", "/").status == 404


def test_router_answers_404_for_an_unknown_path_with_a_body_of_any_size() -> None:
    """Who sends a large body to a path that is not there is told that it is not there."""
    route = MQ.find("POST", "/nowhere")
    assert route.refuse(BadInput("too large")).status == 404
    assert MQ.find("PUT", "/mq/a/messages/b").max_body == 7


def test_router_decodes_a_path_segment_once() -> None:
    assert decoded("a%2541") == "a%41"
    with pytest.raises(BadInput, match="two hexadecimal digits"):
        decoded("50%")


@pytest.mark.parametrize(
    ("method", "path", "other"),
    [
        ("PUT", "/mq/a/messages/b", "/mq/a/messages/c"),
        ("PUT", "/mq//messages/b", "/mq//messages/messages"),
        ("PATCH", "/mq/a/messages/b/complete", "/mq/a/messages/complete/complete"),
    ],
)
def test_router_stem_is_shared_by_paths_that_differ_in_their_last_parameter(method: str, path: str, other: str) -> None:
    path_template = MQ.find(method, path).path_template
    assert path_template is not None
    value = other[len(path_template.before) : len(other) - len(path_template.after)]
    assert other == f"{path_template.before}{value}{path_template.after}"
    exchange = Caught()
    path_template.route(value).handle(Request(method, other, "", {}, b"", "test:1"), exchange)
    assert exchange.response == ask(MQ, method, other)


def test_router_stem_is_absent_where_a_name_may_stand() -> None:
    routes = api("a", ("GET", "/a/{x}/{y}"), ("GET", "/a/{x}/all"), ("GET", "/b/{x}/{y}/{z}"), ("GET", "/b/{x}/c/c/c"))
    assert routes.find("GET", "/a/1/2").path_template is None
    assert routes.find("GET", "/b/1/2/3").path_template is not None
    assert routes.find("GET", "/b/%31/2/3").path_template is None
    assert routes.find("GET", "/nowhere").path_template is None
    assert not routes.find("GET", "/nowhere").is_lasting
