"""A component of TorchX: torchx run deploy/torchx/component.py:elastic --etcd etcd:2379 --nodes 1:4"""

from torchx import specs


def elastic(
    etcd: str,
    *args: str,
    image: str = "localhost/elastic:dev",
    nodes: str = "1:4",
    save_path: str = "/checkpoint",
    cpu: int = 2,
    memory_mb: int = 8192,
) -> specs.AppDef:
    """Elastic training on so many nodes.

    Args:
        etcd: endpoints, `host:port` with `;` between.
        args: arguments of elastic/worker.py.
        image: the image of docker/Dockerfile.
        nodes: least and most nodes, as MIN:MAX.
        save_path: where checkpoints go.
        cpu: processors of a node.
        memory_mb: memory of a node.
    """
    most = int(nodes.rpartition(":")[2])
    return specs.AppDef(
        name="elastic",
        roles=[
            specs.Role(
                name="node",
                image=image,
                entrypoint="torchrun",
                args=[
                    f"--nnodes={nodes}",
                    "--rdzv_backend=etcd",
                    f"--rdzv-endpoint={etcd}",
                    f"--rdzv-id={specs.macros.app_id}",
                    "--shutdown-timeout=25",
                    "elastic/worker.py",
                    *args,
                ],
                env={"ELASTIC__CHECKPOINT__SAVE_PATH": save_path, "ELASTIC_NODE": f"node{specs.macros.replica_id}"},
                num_replicas=most,
                max_retries=100,
                retry_policy=specs.RetryPolicy.REPLICA,
                resource=specs.Resource(cpu=cpu, gpu=0, memMB=memory_mb),
                port_map={"metrics": 9400},
            )
        ],
    )
