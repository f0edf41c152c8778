"""Ask a cluster's registry for its versions and nodes, and print them as one JSON line (see ``orchestrator.probe``).

Run as a script in a process of its own: a missing token aborts it, an unreachable cluster hangs it. ``GcsClient`` is
not public, but it is what Ray's own ``health-check`` uses, and it answers in 10 ms where ``ray.init`` needs seconds.
"""

from __future__ import annotations

import json
import sys


def main(address: str) -> dict[str, object]:
    """Versions and live nodes of the cluster at ``address``."""
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError

    try:
        client = GcsClient(address=address)
        metadata = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=3) or b"{}")
        status = json.loads(client.internal_kv_get(b"__autoscaling_status", namespace=None, timeout=3) or b"{}")
        nodes = client.get_all_node_info(timeout=3).values()
    except AuthenticationError:
        return {"unauthenticated": True}
    except Exception as error:
        return {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
    return {
        "ray_version": metadata.get("ray_version", ""),
        "python_version": metadata.get("python_version", ""),
        "autoscaling": status,
        "nodes": [
            {
                "name": node.node_manager_hostname,
                "address": node.node_manager_address,
                "resources": dict(node.resources_total),
                "labels": dict(node.labels),
                "head": node.is_head_node,
                "type": node.node_type_name,
            }
            for node in nodes
            if node.state == 0  # alive
        ],
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
