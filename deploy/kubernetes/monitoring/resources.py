"""The alerts and the dashboard as resources of Kubernetes, on standard output: PrometheusRule and ConfigMap."""

import sys
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parents[2]
NAMESPACE = "elastic"


def resources() -> list[dict[str, object]]:
    """Both, made of the files that Prometheus and Grafana read elsewhere."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    dashboard = (DEPLOY / "grafana" / "dashboard.json").read_text()
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": _named("elastic-training", {"release": "kube-prometheus-stack"}),
            "spec": rules,
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _named("elastic-training-dashboard", {"grafana_dashboard": "1"}),
            "data": {"elastic-training.json": dashboard},
        },
    ]


def _named(name: str, labels: dict[str, str]) -> dict[str, object]:
    return {"name": name, "namespace": NAMESPACE, "labels": labels}


if __name__ == "__main__":
    yaml.safe_dump_all(resources(), sys.stdout, sort_keys=False, allow_unicode=True)
