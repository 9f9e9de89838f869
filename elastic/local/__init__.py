"""A whole cluster on this machine: etcd, nodes, events as they happen. For the demo, the benchmarks and the tests."""
