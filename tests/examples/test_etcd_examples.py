"""Examples of queues in etcd, as their headers run them: a member of etcd, and a node for each example."""

import os
from pathlib import Path

import pytest

from tests.support.etcd import EtcdCluster, program
from tests.support.examples import Place, is_output
from tools.examples_docs import EXAMPLES, read_header

pytestmark = pytest.mark.process

OUTPUTS = {
    "cluster_request_reply.py": "and this one? 13\nhow long? 9\n",
    "etcdctl_queue.sh": """\
message k1: {"to": "ann"}
message k2: {"to": "bob"}
2 acked
""",
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_etcd_example_prints_its_point(etcd: EtcdCluster, tmp_path: Path, name: str) -> None:
    [endpoint] = etcd.endpoints
    place = Place(tmp_path, {"2379": endpoint.rpartition(":")[2]})
    place.env |= {
        "PATH": os.pathsep.join((str(Path(program("etcdctl")).parent), place.env["PATH"])),
        "ETCDCTL_ENDPOINTS": endpoint,
        "YIRANGMQ_ETCD": f"etcd://{endpoint}",
    }
    serve, example = read_header(EXAMPLES / name).commands
    with place.background(serve.removesuffix("&"), tmp_path / "node.txt"):
        said = place.run(example)
        assert is_output(OUTPUTS[name], said), said
