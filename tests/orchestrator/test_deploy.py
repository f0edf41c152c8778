"""The deployment recipes: as far as they can be checked without a cloud, Kubernetes or Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "orchestrator" / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound_shell_with_authentication(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert "RAY_AUTH_MODE=token" in text
    commands = [line for line in text.splitlines() if not line.startswith("#")]
    assert not any("ray stop" in line for line in commands)
    assert os.access(script, os.X_OK)


def test_the_aws_recipe_is_a_cluster_config_that_ray_up_accepts() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((DEPLOY / "aws.yaml").read_text())
    validate_config(prepare_config(config))
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if "ray start" in command)
    assert not any("ray stop" in command for command in starts)
    mounted = set(config["file_mounts"])
    assert any("~/deyo-sweep" in command for command in config["setup_commands"])
    assert {"~/deyo-sweep", "~/.ray/auth_token"} <= mounted


def test_the_kuberay_recipe_has_what_a_rayjob_needs() -> None:
    job = yaml.safe_load((DEPLOY / "kuberay-rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    head = cluster["headGroupSpec"]["template"]["spec"]
    mounted = {mount["name"] for container in head["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in head["volumes"]}
    (group,) = cluster["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_flags_of_the_recipes_exist() -> None:
    """Entry points in the recipes are commands of this command line."""
    from orchestrator.cli.main import VERBS

    job = yaml.safe_load((DEPLOY / "kuberay-rayjob.yaml").read_text())
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["deyo-sweep", "run"]
    assert words[1] in VERBS
    assert "deyo-sweep run" in (DEPLOY / "slurm.sh").read_text()


def test_slurm_would_start_one_ray_on_all_its_nodes(tmp_path: Path) -> None:
    """A dry run: Slurm's commands and Ray replaced by ones that print."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in {
        "scontrol": "printf 'n1\\nn2\\n'",
        "srun": 'case "$*" in *hostname*) echo 10.0.0.1;; *) echo "srun $*";; esac',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "4",
    }
    command = ["bash", str(DEPLOY / "slurm.sh"), "spec.yaml", "/scratch/results"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert "ray symmetric-run --address 10.0.0.1:6379 --min-nodes 2 --num-cpus=4" in line
    assert line.endswith("deyo-sweep run spec.yaml --address 10.0.0.1:6379 --results /scratch/results")
    assert "token" not in done.stdout.lower()
