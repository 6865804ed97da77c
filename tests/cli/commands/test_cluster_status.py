"""TLS files of etcd, from options and the environment into the URL."""

import argparse

import pytest

from yirangmq.cli.commands.cluster_status import with_files


@pytest.mark.parametrize(
    ("given", "env", "wanted"),
    [
        ({}, {}, "etcd://127.0.0.1:2379"),
        ({"store": "etcd://a:1"}, {"YIRANGMQ_ETCD_CA": "/c a"}, "etcd://a:1?ca=%2Fc+a"),
        ({"store": "etcd://a:1?ca=own", "ca": "/c", "cert": "x", "key": "y"}, {}, "etcd://a:1?ca=own&cert=x&key=y"),
    ],
)
def test_etcd_tls_files_of_options_and_environment_go_into_the_url(
    given: dict[str, str], env: dict[str, str], wanted: str
) -> None:
    args = argparse.Namespace(**{"store": None, "ca": None, "cert": None, "key": None} | given)
    assert with_files(args, env) == wanted
