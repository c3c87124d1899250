"""Operations of an OpenAPI document become tools; nothing outside the document is asked for."""

from __future__ import annotations

import json
import socket

import pytest

from nexus_lab.registry import ProblemKind, load_registry, signature

DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Pet Store", "version": "1"},
    "paths": {
        "/pets/{petId}": {
            "parameters": [{"$ref": "#/components/parameters/PetId"}],
            "get": {
                "operationId": "getPet",
                "summary": "Find a pet.",
                "description": "Find a pet by its id.",
                "parameters": [
                    {
                        "name": "fields",
                        "in": "query",
                        "schema": {"type": "array", "items": {"type": "string"}},
                    },
                    {"name": "Authorization", "in": "header", "required": True, "schema": {"type": "string"}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                ],
            },
            "put": {
                "operationId": "update pet!",
                "description": "Change a pet",
                "requestBody": {"$ref": "#/components/requestBodies/Pet"},
            },
            "delete": {"description": "Remove a pet"},
        },
        "/pets": {
            "post": {
                "operationId": "createPet",
                "summary": "Add a pet",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
            }
        },
        "/bulk": {
            "post": {
                "summary": "Add many",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}
                        }
                    },
                },
            }
        },
    },
    "components": {
        "parameters": {
            "PetId": {
                "name": "petId",
                "in": "path",
                "required": True,
                "description": "Number of the pet",
                "schema": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            }
        },
        "requestBodies": {
            "Pet": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "example": "Rex"},
                    "nickname": {"type": "string", "nullable": True},
                    "parent": {"$ref": "#/components/schemas/Pet"},
                    "kind": {"$ref": "#/components/schemas/Kind"},
                },
            },
            "Kind": {"type": "string", "enum": ["cat", "dog"], "xml": {"name": "k"}},
        },
    },
}


@pytest.fixture(scope="module")
def pets():
    return load_registry(DOCUMENT)


def test_each_operation_is_a_tool(pets):
    assert pets.names == ("getPet", "update_pet", "delete_pets_petId", "createPet", "post_bulk")
    assert pets.server_names == ("Pet_Store",)
    assert pets["getPet"].source == "openapi GET /pets/{petId}"
    assert pets["getPet"].description == "Find a pet by its id."
    assert pets["post_bulk"].description == "Add many"


def test_parameters_and_bodies_are_merged(pets):
    assert (
        signature(pets["getPet"], detail="line")
        == "getPet(petId: integer, fields?: string[], X-Trace?: string)"
    )
    assert (
        signature(pets["createPet"], detail="line") == "createPet(name: string, nickname?: string, parent?: "
        "{name: string, nickname?: string, parent?: Pet, kind?: cat|dog}, kind?: cat|dog)"
    )
    assert pets["update_pet"].required == ("petId",)
    assert pets["post_bulk"].required == ("body",)


def test_words_of_openapi_become_json_schema(pets):
    number = pets["getPet"].properties["petId"]
    assert number == {"type": "integer", "exclusiveMinimum": 0, "description": "Number of the pet"}
    assert pets["createPet"].properties["nickname"] == {"type": ["string", "null"]}
    text = json.dumps(pets["createPet"].input_schema)
    assert "readOnly" not in text
    assert "example" not in text
    assert "components" not in text
    assert set(pets["createPet"].input_schema["$defs"]) == {"Pet", "Kind"}


def test_methods_hint_at_what_an_operation_does(pets):
    assert pets["getPet"].read_only
    assert not pets["createPet"].read_only
    assert pets["delete_pets_petId"].annotations["destructiveHint"]


def test_recursive_definitions_are_noted(pets):
    kinds = {(problem.tool, problem.kind) for problem in pets.problems}
    assert ("createPet", ProblemKind.RECURSIVE_REF) in kinds
    assert pets.errors == ()


def _operation(schema: dict, **components) -> dict:
    body = {"content": {"application/json": {"schema": schema}}}
    return {
        "openapi": "3.1.0",
        "paths": {"/x": {"post": {"summary": "x", "requestBody": body}}},
        "components": {"schemas": components},
    }


def test_remote_references_are_refused_and_never_fetched(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("something was asked of the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "https://example.org/a.json"}, "b": {"$ref": "b.json"}},
    }
    registry = load_registry(_operation(schema))
    assert [problem.kind for problem in registry.errors] == [ProblemKind.REMOTE_REF] * 2
    assert signature(registry["post_x"], detail="line") == "post_x(a?: any, b?: any)"


def test_references_that_lead_nowhere_are_errors():
    registry = load_registry(
        _operation({"type": "object", "properties": {"a": {"$ref": "#/components/schemas/No"}}})
    )
    assert [problem.kind for problem in registry.errors] == [ProblemKind.UNRESOLVED_REF]


def test_large_definitions_are_pruned():
    many = {
        f"D{i}": {
            "type": "object",
            "properties": {
                "next": {"$ref": f"#/components/schemas/D{i + 1}"},
                "t": {"description": "y" * 2000},
            },
        }
        for i in range(200)
    }
    registry = load_registry(
        _operation({"type": "object", "properties": {"a": {"$ref": "#/components/schemas/D0"}}}, **many)
    )
    (tool,) = registry
    assert len(json.dumps(tool.input_schema)) < 100_000
    assert ProblemKind.PRUNED_SCHEMA in {problem.kind for problem in registry.problems}
    assert registry.errors == ()


def test_a_body_that_shares_a_name_with_a_parameter_stays_apart():
    document = _operation({"type": "object", "properties": {"id": {"type": "string"}}})
    document["paths"]["/x"]["post"]["parameters"] = [
        {"name": "id", "in": "query", "schema": {"type": "integer"}}
    ]
    assert (
        signature(load_registry(document)["post_x"], detail="line")
        == "post_x(id?: integer, body?: {id?: string})"
    )


def test_yaml_gives_the_same_tools_as_json(tmp_path, pets):
    yaml = pytest.importorskip("yaml")
    path = tmp_path / "api.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT, sort_keys=False))
    assert load_registry(path).tools == pets.tools


def test_yaml_dates_and_number_keys_are_texts(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "api.yml"
    path.write_text(
        "openapi: 3.0.0\npaths:\n  /x:\n    get:\n      summary: x\n      parameters:\n"
        "      - {name: day, in: query, schema: {type: string, default: 2020-01-02}}\n"
        "      responses:\n        200: {description: ok}\n"
    )
    assert load_registry(path)["get_x"].properties["day"]["default"] == "2020-01-02"


@pytest.mark.parametrize(
    "broken", [None, [], "x", {"get": 5}, {"get": {"parameters": "x", "requestBody": []}}]
)
def test_odd_documents_do_no_harm(broken):
    registry = load_registry({"openapi": "3.0.0", "info": 5, "paths": {"/x": broken}})
    assert len(registry) <= 1
