"""Doctor and the cluster probe: tokens, versions, openness, the hosts' views."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.dashboard.utils import to_google_style
from test_grouping import config as any_config

from orchestrator import cluster, doctor, hosts_child
from orchestrator.cli.main import run as command_line
from orchestrator.probe import (
    ClusterError,
    ClusterFacts,
    Node,
    has_autoscaler,
    is_loopback,
    probe,
    token_in_use,
    version_mismatch,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write_token(home: Path, mode: int) -> Path:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("secret-token")
    path.chmod(mode)
    return path


def test_a_token_is_found_in_rays_own_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (token_in_use().present, token_in_use().mode) == (False, "disabled")
    path = write_token(home, 0o600)
    assert (token_in_use().source, token_in_use().mode) == (str(path), "token")
    other = home / "other"
    other.write_text("x")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(other))
    assert token_in_use().path == other
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    assert token_in_use().source == "RAY_AUTH_TOKEN"


def test_a_token_that_others_can_read_is_a_failure(home: Path) -> None:
    path = write_token(home, 0o644)
    check = doctor.token_check(needed=False)
    assert check.ok is False
    assert f"chmod 600 {path}" in check.detail
    path.chmod(0o600)
    assert doctor.token_check(needed=False).ok


def test_a_token_that_is_switched_off_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_token(home, 0o600)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    check = doctor.token_check(needed=True)
    assert check.ok is False
    assert "RAY_AUTH_MODE=token" in check.detail


def test_the_token_is_never_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_token(home, 0o600)
    command_line(["doctor"])
    assert "secret-token" not in capsys.readouterr().out


@pytest.fixture
def dashboard() -> Iterator[str]:
    """What Ray's dashboard says to those with the token ``good``, and to others."""
    answers = {
        "/api/version": {"ray_version": "2.60.0"},
        "/api/cluster_status": {"data": {"clusterStatus": None}},
        "/nodes?view=summary": {
            "data": {
                "summary": [
                    {
                        "raylet": {
                            "state": "ALIVE",
                            "nodeManagerHostname": "w1",
                            "nodeManagerAddress": "10.0.0.1",
                            "resourcesTotal": {"CPU": 16.0, "GPU": 4.0, "memory": 1e11},
                            "labels": {"ray.io/accelerator-type": "H100"},
                            "isHeadNode": True,
                            "nodeTypeName": "gpu",
                        }
                    },
                    {"raylet": {"state": "DEAD", "nodeManagerHostname": "w2"}},
                ]
            }
        },
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            status = 200 if given == "Bearer good" else 403 if given else 401
            self.send_response(status)
            self.end_headers()
            if status == 200:
                self.wfile.write(json.dumps(answers[self.path]).encode())

        def log_message(self, *args: object) -> None:
            return

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_a_dashboard_tells_its_live_hosts(dashboard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "good")
    facts = probe(dashboard)
    assert [node.name for node in facts.nodes] == ["w1"]
    assert (facts.gpus, facts.biggest.gpu_type) == (4, "H100")
    assert facts.grows


@pytest.mark.parametrize(
    ("active", "types", "grows"),
    [
        ({"head": 1}, [""], True),
        ({f"node_{'6880c399' * 7}": 1}, [""], False),
        ({f"node_{'6880c399' * 7}": 1}, ["workers"], False),
        (None, ["head"], True),
        (None, [""], False),
    ],
)
def test_a_cluster_that_grows_is_told_from_one_started_by_hand(
    active: dict[str, int] | None, types: list[str], grows: bool
) -> None:
    status = {} if active is None else {"autoscaler_report": {"active_nodes": active}}
    assert has_autoscaler(status, types) is grows
    assert has_autoscaler(to_google_style(status), types) is grows, "as the dashboard writes it"


@pytest.mark.parametrize("token", [None, "bad"])
def test_a_missing_or_wrong_token_names_the_mode_and_the_path(
    token: str | None, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with pytest.raises(ClusterError) as caught:
        probe(dashboard)
    message = str(caught.value)
    assert "RAY_AUTH_MODE" in message
    assert ("RAY_AUTH_TOKEN" if token else os.path.join(".ray", "auth_token")) in message


def test_token_mode_without_a_token_is_said_before_ray_aborts(dashboard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ClusterError, match="there is no token"):
        probe(dashboard)
    with pytest.raises(ClusterError, match="there is no token"):
        probe(dashboard.removeprefix("http://"))


@pytest.mark.parametrize("address", ["nonsense", "host/path:1", "127.0.0.1:1", "http://127.0.0.1:1"])
def test_addresses_where_no_cluster_is(address: str) -> None:
    with pytest.raises(ClusterError):
        probe(address)


def test_versions_must_be_equal() -> None:
    facts = ClusterFacts(address="h:1", ray_version="2.40.0", python_version="3.12.1", nodes=())
    assert "2.40.0" in (version_mismatch(facts) or "")


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1:1", "localhost:1", "http://127.0.0.1:8265"]))
    assert not any(map(is_loopback, ["10.0.0.1:6379", "http://head:8265"]))


def test_a_host_answers_for_itself(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").touch()
    seen = hosts_child.look(
        {"packages": ["torch", "no-such"], "data": [["a", str(tmp_path / "data"), "V"], ["b", "", "NO_SUCH_VARIABLE"]]}
    )
    assert seen["versions"]["torch"]
    assert seen["versions"]["no-such"] == ""
    assert seen["data"] == {
        "a": {"path": str(tmp_path / "data"), "entries": 1},
        "b": {"path": "", "entries": None},
    }


def test_hosts_that_lack_something_are_named() -> None:
    here = hosts_child.look({"packages": ["ray", "torch"], "data": []})
    answers = [
        {**here, "host": "fine"},
        {**here, "host": "old", "versions": {**here["versions"], "torch": "1.0"}},
        {**here, "host": "bare", "data": {"imagenet-c": {"path": "/nowhere", "entries": None}}},
        {"host": "gone", "error": "no answer in time"},
        {**here, "host": "empty", "versions": {**here["versions"], "torch": ""}},
        {**here, "host": "other", "python": "3.9.18"},
    ]
    checks = {check.name: check for check in doctor.host_checks(answers)}
    assert "torch 1.0" in checks["host old"].detail
    assert checks["host old"].ok is None
    assert checks["host bare, data imagenet-c"].ok is False
    assert checks["host gone"].ok is False
    assert checks["host empty"].ok is False
    assert "install torch there" in checks["host empty"].detail
    assert checks["host other"].ok is False
    assert "workers need Python" in checks["host other"].detail


def facts(*addresses: str) -> ClusterFacts:
    nodes = tuple(Node(name=a, address=a, cpus=1, gpus=0, gpu_type="", memory_bytes=1, head=False) for a in addresses)
    return ClusterFacts(address=addresses[0], ray_version="2", python_version="3", nodes=nodes)


@pytest.mark.parametrize(
    ("address", "hosts", "alone"),
    [
        ("127.0.0.1:6379", ["127.0.0.1"], True),
        ("127.0.0.1:6379", ["192.0.2.2"], False),
        ("127.0.0.1:6379", ["127.0.0.1", "192.0.2.3"], False),
        ("192.0.2.2:6379", ["127.0.0.1"], False),
    ],
)
def test_a_cluster_without_a_token_is_judged_by_its_hosts_too(
    address: str, hosts: list[str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head with an address of the network listens there, also where it is called by loopback."""
    found = facts(*hosts)
    monkeypatch.setattr(cluster, "probe", lambda address, authenticated=True: found)
    monkeypatch.setattr(cluster, "version_mismatch", lambda facts: None)
    monkeypatch.setattr(doctor, "probe", lambda address, authenticated=True: found)
    assert doctor.openness_check(address, found).ok is (None if alone else False)
    if alone:
        cluster.check_cluster(address)
    else:
        with pytest.raises(ClusterError, match="no authentication"):
            cluster.check_cluster(address)
    cluster.check_cluster(address, allow_insecure=True)


def test_a_token_that_others_could_read_is_closed_to_them(home: Path) -> None:
    path = write_token(home, 0o644)
    assert cluster._private_token()
    assert path.stat().st_mode & 0o777 == 0o600


def test_this_machine_by_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["doctor", "--json"]) == 0
    names = [check["name"] for check in json.loads(capsys.readouterr().out)]
    assert names == ["versions", "token", "resources", "cache"]


def test_a_port_that_speaks_no_http_is_told_from_the_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    """The likeliest mistake: http:// with the port of Ray itself."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"\x00\x00\x12\x04 not http\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert command_line(["doctor", "--address", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join(10)
    assert "speaks no HTTP: Ray Jobs are at the dashboard's port" in capsys.readouterr().out


def test_a_cluster_that_is_not_there_exits_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["doctor", "--address", "127.0.0.1:1"]) == 1
    assert "FAIL cluster: nothing answers" in capsys.readouterr().out


def test_hosts_that_make_frost_need_its_photographs() -> None:
    here = hosts_child.look({"packages": ["ray", "torch", "imagecorruptions-imaug"], "data": []})
    bare = {**here, "host": "bare", "versions": {**here["versions"], "imagecorruptions-imaug": ""}}
    whole = {**here, "host": "whole", "versions": {**here["versions"], "imagecorruptions-imaug": "1.1.5"}}
    told = [check for check in doctor.host_checks([bare, whole], frost=True) if "frost" in check.name]
    assert [(check.name, check.ok) for check in told] == [("host bare, frost", None)]
    assert "pip install --no-deps imagecorruptions-imaug" in told[0].detail
    assert not any("frost" in check.name for check in doctor.host_checks([bare], frost=False))


@pytest.mark.parametrize(
    ("benchmark", "corruption", "made"),
    [("cifar10-jpeg", "frost", True), ("cifar10-jpeg", "fog", False), ("cifar10-c", "frost", False)],
)
def test_frost_is_made_of_generated_images_alone(benchmark: str, corruption: str, made: bool) -> None:
    run = dataclasses.replace(any_config(), benchmark=benchmark, benchmark_options={}, corruption=corruption)
    assert doctor.makes_frost([run]) is made
    stream = dataclasses.replace(run, corruption=None, corruptions=("fog", corruption))
    assert doctor.makes_frost([stream]) is made
