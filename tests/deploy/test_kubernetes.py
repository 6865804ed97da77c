"""The manifests of Kubernetes: valid by the schema of its API, consistent with each other, and true of the server.

The schema of KEDA's resources here is the part of its definitions that the manifests use."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.support.server_process import Daemon, run_command
from tests.support.source_tree import ROOT
from yirangmq.config.settings import Settings, variable

FOLDER = ROOT / "deploy/kubernetes"
SCHEMA = ROOT / ".tools/kubernetes/v1.34.0.json"
TOKENS = {"token": "a-token-of-the-test-0123456789", "look": "a-token-that-may-look-0123456789"}
KINDS = {"v1": "io.k8s.api.core.v1.", "apps/v1": "io.k8s.api.apps.v1."}

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def exactly(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": [*required],
        "additionalProperties": False,
    }


REFERENCE = exactly({"parameter": TEXT, "name": TEXT, "key": TEXT})
TRIGGER = exactly(
    {"type": TEXT, "metadata": {"type": "object", "additionalProperties": TEXT}},
    authenticationRef=exactly({"name": TEXT}),
)
KEDA = {
    "TriggerAuthentication": exactly({"secretTargetRef": {"type": "array", "items": REFERENCE}}),
    "ScaledObject": exactly(
        {"scaleTargetRef": exactly({"name": TEXT}), "triggers": {"type": "array", "items": TRIGGER}},
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        cooldownPeriod=NUMBER,
    ),
}


@cache
def resources() -> dict[tuple[str, str], dict[str, Any]]:
    """Return all resources of the manifests by kind and name."""
    found = [one for file in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())]
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(named) == len(found) > 5
    return named


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod templates by the names of what makes them."""
    return {name: one["spec"]["template"] for (_, name), one in resources().items() if "template" in one["spec"]}


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container["env"]}


@pytest.fixture(scope="module")
def server_pod() -> dict[str, Any]:
    pod: dict[str, Any] = pods()["yirangmq"]["spec"]
    return pod


@pytest.fixture(scope="module")
def container(server_pod: dict[str, Any]) -> dict[str, Any]:
    [container] = server_pod["containers"]
    return dict(container)


@pytest.mark.skipif(not SCHEMA.exists(), reason="the schema is not here; tools/kubernetes.sh fetches it")
def test_kubernetes_resources_are_valid_by_the_schema_of_its_api() -> None:
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    checked = 0
    for (kind, name), resource in resources().items():
        if resource["apiVersion"] in KINDS:
            schema = {"$ref": f"#/$defs/{KINDS[resource['apiVersion']]}{kind}", "$defs": definitions}
            errors = [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(resource)]
            assert errors == [], (kind, name)
            checked += 1
    assert checked == 4
    resource = json.loads(json.dumps(resources()["StatefulSet", "yirangmq"]))
    resource["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    schema = {"$ref": "#/$defs/io.k8s.api.apps.v1.StatefulSet", "$defs": definitions}
    assert not jsonschema_rs.validator_for(schema).is_valid(resource)


def test_keda_resources_have_members_of_the_right_type() -> None:
    """KEDA takes texts as the metadata of a trigger: a number is refused."""
    for kind, schema in KEDA.items():
        [resource] = [one for (its_kind, _), one in resources().items() if its_kind == kind]
        assert resource["apiVersion"] == "keda.sh/v1alpha1"
        errors = [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(resource["spec"])]
        assert errors == [], kind


def test_kubernetes_resources_refer_to_each_other_by_names_that_exist() -> None:
    all_resources = resources()
    pod_labels = {name: pod["metadata"]["labels"] for name, pod in pods().items()}
    for (kind, name), one in all_resources.items():
        spec = one["spec"]
        if kind == "Service":
            assert [pod for pod, labels in pod_labels.items() if spec["selector"].items() <= labels.items()] == [
                "yirangmq"
            ]
            [container] = pods()["yirangmq"]["spec"]["containers"]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert {port["targetPort"]: port["port"] for port in spec["ports"]}.items() <= ports.items()
        elif kind in ("StatefulSet", "Deployment"):
            assert spec["selector"]["matchLabels"].items() <= pod_labels[name].items()
    assert ("Service", all_resources["StatefulSet", "yirangmq"]["spec"]["serviceName"]) in all_resources
    scaled = all_resources["ScaledObject", "yirangmq-consumer-mail"]["spec"]
    assert ("Deployment", scaled["scaleTargetRef"]["name"]) in all_resources
    assert ("TriggerAuthentication", scaled["triggers"][0]["authenticationRef"]["name"]) in all_resources


def test_kubernetes_secret_of_the_manifests_is_the_one_that_the_instructions_make() -> None:
    [made] = re.findall(r"kubectl create secret generic (\w+) (.+)", (FOLDER / "server.yaml").read_text())
    keys = set(re.findall(r"--from-literal=(\w+)=", made[1]))
    assert (made[0], keys) == ("yirangmq", {*TOKENS})
    used = [
        one["valueFrom"]["secretKeyRef"]
        for pod in pods().values()
        for container in pod["spec"]["containers"]
        for one in container["env"]
        if "valueFrom" in one
    ]
    used += resources()["TriggerAuthentication", "yirangmq-look"]["spec"]["secretTargetRef"]
    assert len(used) == 2
    assert {(one["name"], one["key"]) for one in used} <= {(made[0], key) for key in keys}
    assert {
        volume["secret"]["secretName"] for volume in pods()["yirangmq"]["spec"]["volumes"] if "secret" in volume
    } == {made[0]}


@pytest.mark.parametrize("name", ["yirangmq", "yirangmq-consumer-mail"])
def test_kubernetes_pods_run_without_privileges_as_the_user_of_the_image(name: str) -> None:
    pod = pods()[name]["spec"]
    [container] = pod["containers"]
    [uid] = re.findall(r"useradd --system --uid (\d+)", (ROOT / "deploy/Containerfile").read_text())
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, int(uid))
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = resources().get(("StatefulSet", name), {"spec": {}})["spec"].get("volumeClaimTemplates", [])
    assert mounted == {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in claims}


def test_kubernetes_server_gets_settings_that_exist_and_time_to_stop(
    server_pod: dict[str, Any], container: dict[str, Any]
) -> None:
    assert variables(container).keys() <= {variable(name) for name in Settings.__dataclass_fields__}
    assert server_pod["terminationGracePeriodSeconds"] > Settings.__dataclass_fields__["stop_seconds"].default


@pytest.mark.process
def test_kubernetes_server_answers_its_probes_keda_and_the_consumer(tmp_path: Path, container: dict[str, Any]) -> None:
    """The server as its pod starts it: settings, modes of volume and secret, and the addresses that others use."""
    volume, secrets = tmp_path / "data", tmp_path / "secrets"
    volume.mkdir()
    volume.chmod(0o2770)  # as Kubernetes makes it for the group of fsGroup
    secrets.mkdir()
    for name, token in TOKENS.items():
        (secrets / name).write_text(token)
        (secrets / name).chmod(0o440)
    places = {"/data/": f"{volume}/", "/run/secrets/yirangmq/": f"{secrets}/", ":8080": ":0", ":7411": ":0"}
    settings = variables(container)
    for name, value in settings.items():
        for place, here in places.items():
            value = value.replace(place, here)
        settings[name] = value
    server = Daemon(tmp_path, data="")
    try:
        server.start(**settings)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server.request("GET", container[probe]["httpGet"]["path"])[0] == 200, probe
        status, health = server.request("GET", "/v1/health", token=TOKENS["look"])
        assert (status, health["status"], health["reasons"]) == (200, "ok", [])
        # KEDA
        [trigger] = resources()["ScaledObject", "yirangmq-consumer-mail"]["spec"]["triggers"]
        path = trigger["metadata"]["url"].removeprefix("http://yirangmq:8080")
        assert server.request("GET", path)[0] == 401
        assert server.request("GET", path, token=TOKENS["look"])[0] == 404
        assert server.request("POST", f"{path}/messages", {"n": 1}, token=TOKENS["token"])[0] == 200
        status, queue = server.request("GET", path, token=TOKENS["look"])
        assert (status, queue[trigger["metadata"]["valueLocation"]]) == (200, 1)
        # the consumer
        [consumer] = pods()["yirangmq-consumer-mail"]["spec"]["containers"]
        words = [word.replace("tcp://yirangmq:7411", server.address_of("tcp")) for word in consumer["args"]]
        done = run_command(tmp_path, *words, "--until-empty", YIRANGMQ_TOKEN=TOKENS["token"])
        assert done.returncode == 0, done.stderr
        assert server.request("GET", path, token=TOKENS["look"])[1]["done"] == 1
        assert server.stop() == 0
    finally:
        server.kill()
