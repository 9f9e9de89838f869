"""`elastic config schema`: a JSON Schema that knows every setting, with the limits that the loader has."""

import json

import pytest

from elastic.cli import main
from elastic.config.load import resolve
from elastic.config.schema import FIELDS, OPTIONS
from elastic.errors import ConfigError


@pytest.fixture
def schema(capsys):
    assert main(["config", "schema"]) == 0
    return json.loads(capsys.readouterr().out)


def fields(schema):
    sections = schema["properties"]
    return {f"{section}.{name}": told for section in sections for name, told in sections[section]["properties"].items()}


def test_every_setting_is_there_with_meaning_type_and_default(schema):
    found = fields(schema)
    assert set(found) == set(FIELDS)
    assert all(told["description"] for told in found.values())
    assert found["training.steps"] == {
        "description": FIELDS["training.steps"].rule.meaning + " [steps]",
        "minimum": 1,
        "type": "integer",
        "default": 1000,
    }
    assert found["training.numerics"]["enum"] == ["plain", "exact"]
    assert found[OPTIONS]["additionalProperties"]["type"] == ["string", "integer", "number", "boolean"]
    assert schema["additionalProperties"] is False


def outside(told):
    """A value that the schema does not allow, by its limits; None where there are none."""
    if "minimum" in told:
        return told["minimum"] - 1
    if "exclusiveMinimum" in told:
        return told["exclusiveMinimum"]
    if "enum" in told:
        return "another"
    return {"boolean": "perhaps", "integer": "many"}.get(told["type"])


def test_what_it_forbids_the_loader_refuses(schema):
    tried = {key: outside(told) for key, told in fields(schema).items()}
    for key, value in tried.items():
        if value is not None:
            with pytest.raises(ConfigError):
                resolve([f"--{key}={value}"], environ={})
    assert sum(value is not None for value in tried.values()) > 40
