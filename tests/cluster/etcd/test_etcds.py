"""The clusters that other tests stand on: they start, lose a member, and come back with what they had."""

import pytest

from tests.support.etcd import EtcdCluster

pytestmark = pytest.mark.process


def test_etcd_cluster_of_one_member_answers_etcdctl(etcd: EtcdCluster) -> None:
    etcd.ctl("put", "/here", "yes")
    assert etcd.ctl("get", "/here", "--print-value-only") == b"yes\n"


def test_etcd_cluster_of_three_members_keeps_its_data_through_kills_of_all(etcds: EtcdCluster) -> None:
    etcds.ctl("put", "/here", "yes")
    leader = etcds.leader()
    leader.kill()
    others = [member for member in etcds.members if member is not leader]
    assert etcds.wait_well(others)
    assert etcds.leader() is not leader
    for member in others:
        member.kill()
    for member in etcds.members:
        member.start()
    assert etcds.wait_well()
    assert etcds.ctl("get", "/here", "--print-value-only") == b"yes\n"
