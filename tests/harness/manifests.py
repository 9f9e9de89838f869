"""Manifests as they reach a cluster, and what is wrong with them: schemas, unknown keys, all without a cluster."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml
from kubernetes_validate import SchemaNotFoundError, ValidationError, validate

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("plain", "development", "jobset-kueue", "trainer", "pytorchjob")
OLDEST, NEWEST = "1.31", "1.37"
"""Versions of Kubernetes: the oldest in which an Indexed Job may be scaled for good, the newest with a schema here."""

Resource = dict[str, Any]


def program(name: str) -> str:
    """A program that a wheel has brought, or one on PATH."""
    places = [Path(sys.executable).parent]
    places += [Path(place).parents[2] / "bin" for place in sys.path if place.endswith("site-packages")]
    found = shutil.which(name, path=":".join(map(str, places))) or shutil.which(name)
    assert found, f"{name} is missing: make setup"
    return found


@functools.cache
def render(overlay: str) -> tuple[Resource, ...]:
    """All resources of an overlay, as kustomize makes them."""
    command = [program("kubectl"), "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def named(resource: Resource) -> str:
    return f"{resource['kind']}/{resource['metadata']['name']}"


def pod_templates(resources: tuple[Resource, ...]) -> Iterator[tuple[str, Resource]]:
    """Every template of a pod, wherever it lies, with its owner's name."""

    def within(value: Any) -> Iterator[Resource]:
        if isinstance(value, dict):
            spec = value.get("spec")
            if isinstance(spec, dict) and "containers" in spec:
                yield value
            for each in value.values():
                yield from within(each)
        elif isinstance(value, list):
            for each in value:
                yield from within(each)

    for resource in resources:
        for template in within(resource):
            yield named(resource), template


def schema_faults(resource: Resource, *, version: str) -> list[str]:
    """What Kubernetes of this version would refuse, unknown keys among it. Its own kinds only."""
    try:
        validate(resource, version, strict=True)
    except ValidationError as error:
        return [f"{named(resource)} in {version}: {'.'.join(map(str, error.path))}: {error.message}"]
    except SchemaNotFoundError:
        return custom_faults(resource)
    return []


def custom_faults(resource: Resource) -> list[str]:
    """The same for the kinds that operators bring, by the models that Python packages carry."""
    model = _model_of(resource)
    if model is None:
        return [f"{named(resource)}: no model of {resource['apiVersion']} is known"]
    if hasattr(model, "model_validate"):
        faults = list(_type_faults(resource, model))
        if faults:
            return [f"{named(resource)}: {fault}" for fault in faults]
    return [f"{named(resource)}: {fault}" for fault in unknown_keys(resource, model)]


def _type_faults(resource: Resource, model: Any) -> Iterator[str]:
    """Values of a wrong type. Quantities and names of ports are plain texts, which the generated models deny."""
    try:
        model.model_validate(resource)
    except pydantic.ValidationError as error:
        for each in error.errors():
            if not str(each.get("ctx", {}).get("class_name", "")).endswith(("Quantity", "IntOrString")):
                yield f"{'.'.join(map(str, each['loc']))}: {each['msg']}"


def _model_of(resource: Resource) -> Any:
    group, kind = resource["apiVersion"].rpartition("/")[0], resource["kind"]
    if group == "monitoring.coreos.com":
        from cloudcoil.models.prometheus_operator import v1 as operator

        return getattr(operator, kind)
    if group == "cert-manager.io":
        from cloudcoil.models.cert_manager import v1 as cert_manager

        return getattr(cert_manager, kind)
    if group in ("trainer.kubeflow.org", "jobset.x-k8s.io"):
        from kubeflow_trainer_api import models

        return getattr(
            models, {"trainer.kubeflow.org": "TrainerV1alpha1", "jobset.x-k8s.io": "JobsetV1alpha2"}[group] + kind
        )
    if group == "kubeflow.org":
        from kubeflow.training import models as legacy

        return getattr(legacy, f"KubeflowOrgV1{kind}")
    return None


def unknown_keys(value: Any, model: Any, *, at: str = "") -> Iterator[str]:
    """Keys that a model does not have, all the way down. Models themselves let them pass."""
    fields = _fields(model)
    if isinstance(value, Mapping) and fields:
        for key, each in value.items():
            if key in fields:
                yield from unknown_keys(each, fields[key], at=f"{at}.{key}")
            else:
                yield f"{at}.{key} is unknown"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from unknown_keys(each, _inner(model), at=f"{at}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from unknown_keys(each, _inner(model), at=f"{at}[{index}]")


def _fields(model: Any) -> Mapping[str, Any]:
    """Name in YAML -> type: of a pydantic model, or of a class that OpenAPI's generator made."""
    model = _plain(model)
    if hasattr(model, "model_fields"):
        return {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    if hasattr(model, "openapi_types"):
        return {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    return {}


def _plain(model: Any) -> Any:
    """A type without Optional, by itself where it is only named."""
    if isinstance(model, str):
        return _by_name(model)
    options = [each for each in typing.get_args(model) if each is not type(None)]
    structured = [each for each in options if _fields(each)] if typing.get_origin(model) not in (list, dict) else []
    return structured[0] if structured else model


def _by_name(name: str) -> Any:
    import kubernetes.client
    from kubeflow.training import models as legacy

    return getattr(legacy, name, None) or getattr(kubernetes.client, name, name)


def _inner(model: Any) -> Any:
    """What a list or a mapping holds."""
    if isinstance(model, str):
        return model.partition("[" if "[" in model else "(")[2].rstrip("])").rpartition(", ")[2]
    for option in (model, *typing.get_args(model)):
        if typing.get_origin(option) in (list, dict):
            return typing.get_args(option)[-1]
    return None


def write_all(target: Path) -> None:
    """Every overlay, and alerts and dashboard as resources, each as one file."""
    target.mkdir(parents=True, exist_ok=True)
    for overlay in OVERLAYS:
        (target / f"{overlay}.yaml").write_text(yaml.safe_dump_all(render(overlay), sort_keys=False))
    command = [sys.executable, str(KUBERNETES / "monitoring" / "resources.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    (target / "monitoring.yaml").write_text(made.stdout)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
