"""Two Ray nodes on this machine, each with a raylet and one CPU, in a process of their own.

Prints the address; a line on standard input kills the second node, and its end ends both.
"""

import sys

from ray.cluster_utils import Cluster

_NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    second = cluster.add_node(**_NODE)
    print(f"address {cluster.address}", flush=True)  # noqa: T201 - this is how the test learns it
    if sys.stdin.readline():
        cluster.remove_node(second, allow_graceful=False)
        sys.stdin.readline()
    cluster.shutdown()
