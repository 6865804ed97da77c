"""Settings: which of them wins, what is refused, and the page that lists them."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.support.credentials import TOKEN
from yirangmq.config.config import Config, load
from yirangmq.config.settings import default_of, flag, variable
from yirangmq.core.errors import BadInput
from yirangmq.core.policy import Defaults

ROOT = Path(__file__).parents[2]
TLS = {"tls_cert": "c", "tls_key": "k"}


def test_config_without_settings_is_complete() -> None:
    config = load({}, {}, {})
    assert config == Config()
    assert config.store_url == "sqlite:yirang-data/queue.db"
    assert config.socket_path == "yirang-data/yirangmq.sock"
    assert config.tcp_address is None
    assert config.node_name


def test_config_flags_override_the_environment_and_the_environment_the_file() -> None:
    document = {"max_connections": 1, "max_pending": 1, "idle_seconds": 1, "data": "file"}
    env = {"YIRANGMQ_MAX_PENDING": "2", "YIRANGMQ_IDLE_SECONDS": "2", "HOME": "/"}
    config = load(document, env, {"idle_seconds": "3", "max_frame_bytes": None})
    assert (config.max_connections, config.max_pending, config.idle_seconds) == (1, 2, 3)
    assert config.data == "file"
    assert config.max_frame_bytes == 16 * 1024 * 1024


@pytest.mark.parametrize("name", [one.name for one in fields(Config)])
def test_config_setting_can_be_given_by_file_variable_and_flag(name: str) -> None:
    given: dict[str, Any] = {
        "store": "memory:", "file_access": "group",
        "durability": "os", "socket_mode": "600", "tcp": "127.0.0.1:0", "insecure": "true",
        "tls_cert": "c", "tls_key": "k", "on_stop": "release", "log_level": "debug", "log_format": "text",
        "topic_cursors": "file:/c",
        "http": "off", "topic_durability": "os", "topic_masks": "a,b", "topic_buffer_bytes": "8KiB",
        "feed_tcp": "127.0.0.1:0", "stomp": "127.0.0.1:61613", "http_tokens": f'[{{"token": "{TOKEN}"}}]',
        "client_memory_bytes": "65MiB", "write_buffer_bytes": "8KiB", "max_frame_bytes": "2048", "node": "north",
        "pair_peer": "127.0.0.1:9", "pair_listen": "127.0.0.1:9", "pair_witness": "file:/w",
        "mq_unique": "true", "stay_awake": "off", "pair_handover": "off", "files_by_date_days": "8",
        "files_by_date_zone": "Asia/Hong_Kong",
        "cors_origins": "https://app.example, http://localhost:3000", "http_hosts": "mq.example, *",
        "syslog": "udp:localhost:514", "bridges": '[{"name": "b", "queue": "q"}]',
        "processors": '{"*": {"integrity": "sha256"}}', "hooks": "bank, shop.rules",
        "token": TOKEN, "pair_key": TOKEN, "mq_admin_password": TOKEN,
        "alerts": '{"remindSec": 5}', "outgoing_networks": "10.0.0.0/8",
        "programs": '[{"name": "A", "addresses": ["10.0.0.1"]}]', "routes": '[{"source": "*", "target": "*"}]',
    }  # fmt: skip
    value = given.get(name, "7")
    pair = {"pair_key": TOKEN, "node": "north"}
    other = {
        "tls_cert": {"tls_key": "k"}, "tls_key": {"tls_cert": "c"}, "tls_client_ca": TLS, "pair_peer": pair
    }.get(name, {})  # fmt: skip
    by_file = load({name: value, **other}, {}, {})
    by_variable = load(other, {variable(name): value}, {})
    by_flag = load(other, {}, {name: value})
    assert by_file == by_variable == by_flag
    assert getattr(by_file, name) != getattr(Config(), name)


@pytest.mark.parametrize(
    ("document", "env", "flags", "field", "says"),
    [
        ({"max_conections": 5}, {}, {}, "max_conections", "did you mean 'max_connections'"),
        ({"colour": 5}, {}, {}, "colour", "known: data, file_access, store"),
        ({}, {"YIRANGMQ_TOKN": "x"}, {}, "YIRANGMQ_TOKN", "did you mean 'YIRANGMQ_TOKEN'"),
        ({"max_store_bytes": 1, "store": "memory:"}, {}, {}, "max_store_bytes", "no size on disk"),
        ({"max_connections": "many"}, {}, {}, "max_connections", "whole number from 1 to 100000"),
        ({"max_connections": 0}, {}, {}, "max_connections", "whole number"),
        ({"max_connections": True}, {}, {}, "max_connections", "whole number"),
        ({}, {"YIRANGMQ_IDLE_SECONDS": "soon"}, {}, "YIRANGMQ_IDLE_SECONDS", "a number from"),
        ({}, {"YIRANGMQ_IDLE_SECONDS": "nan"}, {}, "YIRANGMQ_IDLE_SECONDS", "a number from"),
        ({}, {}, {"durability": "maybe"}, "--durability", "one of full, os"),
        ({"max_frame_bytes": "16XB"}, {}, {}, "max_frame_bytes", "whole number"),
        ({"socket_mode": 660}, {}, {}, "socket_mode", "octal"),
        ({"socket_mode": "888"}, {}, {}, "socket_mode", "octal"),
        ({"data": 5}, {}, {}, "data", "must be a text, not a number"),
        ({"insecure": "perhaps"}, {}, {}, "insecure", "true or false"),
        ({"node": "a b"}, {}, {}, "node", "not allowed"),
        ({"tcp": "7411"}, {}, {}, "tcp", "HOST:PORT"),
        ({"syslog": "localhost"}, {}, {}, "syslog", "unix:PATH or udp:HOST:PORT"),
        ({"tcp": "localhost:99999"}, {}, {}, "tcp", "at most 65535"),
        ({"tls_cert": "c.pem"}, {}, {}, "tls_key", "go together"),
        ({"token": TOKEN, "token_file": "b"}, {}, {}, "token", "only one"),
        ({"socket": "off", "http": "off"}, {}, {}, "socket", "no client could reach"),
        ({"http": "8080"}, {}, {}, "http", "HOST:PORT or unix:PATH"),
        (
            {"http": "127.0.0.1:8080,unix:mq.http"},
            {},
            {},
            "http",
            "is not one address; give one HOST:PORT or unix:PATH",
        ),
        ({"tcp": "127.0.0.1:1,127.0.0.1:2"}, {}, {}, "tcp", "is not one address; give one HOST:PORT"),
        ({}, {"MQ_PORT": "many"}, {}, "http", "HOST:PORT"),
        ({}, {"MQ_UNIQUE": "yes"}, {}, "MQ_UNIQUE", "true or false"),
        ({}, {"MQ_DRAFTING_TIMEOUT": "0"}, {}, "MQ_DRAFTING_TIMEOUT", "a number from 0.001"),
        ({}, {"MQ_ORDERED_TIMEOUT": "-1"}, {}, "MQ_ORDERED_TIMEOUT", "a number from"),
        ({}, {"MQ_ACTIVE_TIMEOUT": "soon"}, {}, "MQ_ACTIVE_TIMEOUT", "a number from"),
        ({}, {"MQ_CONCURRENCY": "0"}, {}, "MQ_CONCURRENCY", "whole number from 1"),
        ({}, {"MQ_CONCURRENCY": "1.5"}, {}, "MQ_CONCURRENCY", "whole number"),
        ({}, {"MQ_PAYLOAD_LIMIT": "0"}, {}, "MQ_PAYLOAD_LIMIT", "whole number from 1"),
        ({}, {"MQ_SET_PAYLOAD_LIMIT": "-5"}, {}, "MQ_SET_PAYLOAD_LIMIT", "whole number from 1"),
        ({"http_tokens": {}}, {}, {}, "http_tokens", "an array of objects"),
        ({"http_tokens": [{}]}, {}, {}, "http_tokens", "either token or tokenFile"),
        ({"http_tokens": [{"token": "short"}]}, {}, {}, "http_tokens", "at least 16"),
        ({"http_tokens": [{"token": "with a space"}]}, {}, {}, "http_tokens", "visible ASCII"),
        ({"http_tokens": [{"token": TOKEN, "scopes": ["root"]}]}, {}, {}, "http_tokens", "some of publish"),
        ({"http_tokens": [{"token": TOKEN, "queues": []}]}, {}, {}, "http_tokens", "at least one"),
        ({"http_tokens": [{"token": TOKEN, "scope": []}]}, {}, {}, "http_tokens", "did you mean 'scopes'"),
        ({}, {"YIRANGMQ_HTTP_TOKENS": "{"}, {}, "YIRANGMQ_HTTP_TOKENS", "Expecting"),
        ({"write_buffer_bytes": "1GiB"}, {}, {}, "write_buffer_bytes", "client_memory_bytes"),
        ({"topic_cursors": "on"}, {}, {}, "topic_cursors", "file:FILE or sqlite:FILE"),
        (
            {},
            {},
            {"topics": "on"},
            "--topics",
            "path or 'off', not 'on'; omit it for DATA/topics, or write './on' for a path of that name",
        ),
        ({"topics": True}, {}, {}, "topics", "must be a path or 'off', not 'true'"),
        ({}, {"YIRANGMQ_TOPICS": "Off"}, {}, "YIRANGMQ_TOPICS", "must be a path or 'off', not 'Off'"),
        ({"files_by_date": "yes"}, {}, {}, "files_by_date", "must be a path or 'on' or 'off', not 'yes'"),
        ({}, {"MQ_DATA": "1"}, {}, "MQ_DATA", "must be a path, not '1'; omit it for ./yirang-data"),
        ([], {}, {}, "config", "a JSON object"),
    ],
)
def test_config_setting_that_is_invalid_is_refused_with_its_name_and_a_reason(
    document: object, env: dict[str, str], flags: dict[str, object], field: str, says: str
) -> None:
    with pytest.raises(BadInput, match=says.replace("(", r"\(")) as caught:
        load(document, env, flags)
    assert caught.value.field == field


PATHS = {
    "data", "socket", "token_file", "webhook_secrets", "tls_cert", "tls_key", "tls_client_ca", "topics", "feed_socket",
    "pair_key_file", "pair_data", "files_by_date",
}  # fmt: skip
HAVE_OFF = {"socket", "topics", "feed_socket", "files_by_date"}


@pytest.mark.parametrize("name", sorted(PATHS))
def test_config_path_refuses_the_words_of_a_switch(name: str) -> None:
    for word in ("on", "off", "yes", "no", "true", "FALSE", "1", "0", "Enabled", "disabled", " on "):
        if word == "off" and name in HAVE_OFF:
            assert getattr(load({name: word}, {}, {}), name) == "off"
        elif word == "on" and name == "files_by_date":
            assert load({name: word}, {}, {}).day_files_folder == "yirang-data/by-date"
        else:
            with pytest.raises(BadInput, match=f"must be a path.* write './{word}' for a path of that name") as caught:
                load({name: word}, {}, {})
            assert caught.value.field == name


def test_config_setting_described_as_file_or_folder_is_read_as_a_path() -> None:
    """A new setting must not make a folder called ``on`` again."""
    named = {
        one.name
        for one in fields(Config)
        if re.match(r"(path|file with|folder)\b|.*a PEM file|certificate|every accepted", one.metadata["about"])
    }
    assert named == PATHS


@pytest.mark.parametrize("address", ["0.0.0.0:7411", ":7411", "192.168.1.5:7411", "[::]:7411", "queue.example:7411"])
def test_token_is_required_for_tcp_beyond_this_machine(address: str) -> None:
    with pytest.raises(BadInput, match="other machines") as caught:
        load({"tcp": address}, {}, {})
    assert caught.value.field == "tcp"
    assert load({"tcp": address, "token": TOKEN, **TLS}, {}, {}).tcp == address
    assert load({"tcp": address, "token_file": "t", **TLS}, {}, {}).tcp == address
    assert load({"tcp": address, "insecure": True}, {}, {}).tcp == address


@pytest.mark.parametrize(
    "exposed",
    [
        {"tcp": "0.0.0.0:7411"},
        {"http": "[::]:8080"},
        {"stomp": "192.168.1.5:61613"},
        {"store": "etcd://h1", "cluster_listen": "10.0.0.1:7412", "topics": "off"},
    ],
)
def test_tls_or_insecure_is_required_beyond_this_machine_even_with_a_token(exposed: dict[str, Any]) -> None:
    settings = {**exposed, "token": TOKEN}
    with pytest.raises(BadInput, match="clear text: set tls_cert and tls_key, or set insecure") as caught:
        load(settings, {}, {})
    assert caught.value.field in exposed
    load({**settings, "insecure": True}, {}, {})
    load({**settings, **TLS}, {}, {})


def test_tls_is_not_required_on_this_machine_nor_for_signed_heartbeats() -> None:
    load({"tcp": "127.0.0.1:7411", "http": "[::1]:8080", "token": TOKEN}, {}, {})
    pair = {"pair_peer": "10.0.0.2:9091", "pair_listen": "10.0.0.1:9091", "pair_key": TOKEN, "node": "north"}
    load(pair, {}, {})


SECRETS: dict[str, Any] = {
    "token": lambda secret: {"token": secret},
    "http_tokens": lambda secret: {"http_tokens": [{"token": secret}]},
    "programs": lambda secret: {"programs": [{"name": "A", "token": secret}]},
    "pair_key": lambda secret: {
        "pair_key": secret, "pair_peer": "127.0.0.1:9", "pair_listen": "127.0.0.1:9", "node": "north"
    },
    "mq_admin_password": lambda secret: {"mq_admin_password": secret},
}  # fmt: skip


def test_secret_settings_are_all_held_to_the_rule_of_length() -> None:
    """A new secret setting belongs into the table above."""
    assert {one.name for one in fields(Config) if not one.repr} == set(SECRETS)


@pytest.mark.parametrize("name", SECRETS)
def test_secret_of_fewer_than_16_characters_is_refused_with_what_to_do(name: str) -> None:
    for short in ("x", "x" * 15):
        with pytest.raises(BadInput, match=r"at least 16 characters.*yirangmq token new") as caught:
            load(SECRETS[name](short), {}, {})
        assert (caught.value.field or "").startswith(name)
        assert short not in str(caught.value).replace("characters", "")
    load(SECRETS[name]("x" * 16), {}, {})


@pytest.mark.parametrize("address", ["127.0.0.1:7411", "localhost:7411", "[::1]:7411", "127.9.9.9:1"])
def test_token_is_not_required_for_tcp_on_this_machine(address: str) -> None:
    assert load({"tcp": address}, {}, {}).tcp_address is not None


@pytest.mark.parametrize("address", ["0.0.0.0:8080", ":8080", "[::]:8080", "queue.example:8080"])
@pytest.mark.parametrize("door", ["http", "stomp"])
def test_token_is_required_for_http_and_stomp_beyond_this_machine(door: str, address: str) -> None:
    with pytest.raises(BadInput, match="other machines") as caught:
        load({door: address}, {}, {})
    assert caught.value.field == door
    for way in ({"token": TOKEN}, {"token_file": "t"}, {"http_tokens": [{"tokenFile": "t"}]}, {"insecure": True}):
        assert getattr(load({door: address, **way, **TLS}, {}, {}), door) == address
    with pytest.raises(BadInput, match="other machines"):
        load({}, {"MQ_HOST": "0.0.0.0"}, {})


def test_config_http_address_is_port_8080_of_this_machine_unless_set_otherwise() -> None:
    assert load({}, {}, {}).http_address == ("127.0.0.1", 8080)
    assert load({}, {"MQ_PORT": "9000"}, {}).http_address == ("localhost", 9000)
    assert load({"http": "off"}, {"MQ_HOST": "127.0.0.1"}, {}).http_address == ("127.0.0.1", 8080)
    assert load({}, {"MQ_PORT": "9000", "YIRANGMQ_HTTP": "[::1]:1"}, {}).http_address == ("::1", 1)
    assert load({}, {"MQ_PORT": "9000"}, {"http": "off"}).http_address is None
    assert load({"http": ""}, {}, {}).http_address is None
    assert load({"http": "unix:/run/mq.sock"}, {}, {}).http_address == "/run/mq.sock"


def test_config_mq_variables_are_read_and_have_their_defaults() -> None:
    assert load({}, {}, {}).policy_defaults == Defaults(max_queues=10_000)
    plain = load({}, {}, {})
    assert (plain.mq_admin_password, plain.mq_payload_limit, plain.data) == ("", 1_048_576, "yirang-data")
    env = {
        "MQ_UNIQUE": "true", "MQ_DRAFTING_TIMEOUT": "1.5", "MQ_ORDERED_TIMEOUT": "2", "MQ_ACTIVE_TIMEOUT": "3",
        "MQ_CONCURRENCY": "4", "MQ_PAYLOAD_LIMIT": "100", "MQ_ADMIN_PASSWORD": TOKEN, "MQ_DATA": "here", "MQ_HOST": "",
    }  # fmt: skip
    config = load({"mq_concurrency": 7}, env, {})
    assert config.policy_defaults == Defaults(True, 1_500, 2_000, 3_000, 4, 100, max_queues=10_000)
    assert (config.mq_admin_password, config.mq_payload_limit, config.data) == (TOKEN, 100, "here")
    assert load({}, {**env, "MQ_SET_PAYLOAD_LIMIT": "5"}, {}).policy_defaults.set_body == 5
    assert load({}, {**env, "YIRANGMQ_MQ_CONCURRENCY": "9"}, {}).mq_concurrency == 9
    assert load({}, dict.fromkeys(env, ""), {}) == Config()


def test_token_is_not_printed_with_the_config() -> None:
    config = load(
        {"token": f"{TOKEN}-1", "mq_admin_password": f"{TOKEN}-2", "http_tokens": [{"token": f"{TOKEN}-3"}]}, {}, {}
    )
    assert TOKEN not in repr(config)
    assert TOKEN not in repr(config.http_tokens)


def test_config_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("config_docs", ROOT / "tools" / "config_docs.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs" / "configuration.md").read_text() == tool.page(), "run: python tools/config_docs.py"


def test_config_page_names_every_setting_its_default_variable_and_flag() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for setting in fields(Config):
        for text in (setting.name, variable(setting.name), flag(setting.name), default_of(setting)):
            assert not text or f"`{text}`" in page


def test_hook_of_a_processor_must_be_allowed_in_the_config() -> None:
    chains = {"mail": {"hooks": [{"hook": "bank.rules:check"}]}}
    assert load({"processors": chains, "hooks": ["bank"]}, {}, {}).policy_defaults.hooks == ("bank",)
    with pytest.raises(BadInput, match=r"^processors\.mail: .*bank\.rules:check may not run here"):
        load({"processors": chains}, {}, {})
    with pytest.raises(BadInput, match=r"^processors: mail\.integrity: must be one of none, sha256"):
        load({"processors": {"mail": {"integrity": "md5"}}}, {}, {})


def test_config_of_a_server_ignores_the_variables_of_commands() -> None:
    names = ("CA", "CERT", "KEY", "SERVER_TIMEOUT", "ETCD_CA", "ETCD_CERT", "ETCD_KEY", "STORE_URL", "TRACEBACK")
    assert load({}, {f"YIRANGMQ_{name}": "x" for name in names}, {}) == Config()
