"""The OpenAPI document, made from the table of endpoints."""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, cast

import msgspec

from skep.server.http.endpoint import Endpoint, Param, param_names

Json = dict[str, Any]
NO_CONTENT = 204
FIRST_ERROR = 400
REF = "#/components/schemas/{name}"
EVERYWHERE = {400: "The request is wrong.", 503: "The database or the server is busy or down; try again."}
WITH_BODY = {413: "The body is too large."}
WITH_NAME = {404: "There is nothing of this name."}
WITH_RIGHTS = {401: "The caller is not known.", 403: "The caller may not do this."}
ABOUT = """\
Skep is a message queue inside PostgreSQL. It speaks the protocol of Queen, and has routes of its own for what Queen
does not have. Every error is an object with `error`, for people, and `code`, for programs."""


class Error(msgspec.Struct):
    """An error: a text for people, a code for programs."""

    error: str
    code: str


def document(endpoints: Sequence[Endpoint]) -> Json:
    kinds = [kind for endpoint in endpoints for kind in _kinds(endpoint)]
    schemas, components = msgspec.json.schema_components([*kinds, Error], ref_template=REF)
    known = {repr(kind): schema for kind, schema in zip([*kinds, Error], schemas, strict=True)}
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace("...}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skep", "version": version("skep"), "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A JWT or an API key, if auth is on."}
            },
        },
    }


def _kinds(endpoint: Endpoint) -> Iterable[Any]:
    if endpoint.body is not None:
        yield endpoint.body
    for answer in endpoint.answers.values():
        yield from _choices(answer)


def _choices(answer: Any) -> tuple[Any, ...]:  # noqa: ANN401
    if answer is None:
        return ()
    return cast("tuple[Any, ...]", answer) if isinstance(answer, tuple) else (answer,)


def _operation(endpoint: Endpoint, known: dict[str, Json]) -> Json:
    operation: Json = {
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{endpoint.method}{endpoint.path}".lower()).strip("_"),
        "tags": [endpoint.run.__module__.rpartition(".")[2]],
        "summary": endpoint.summary,
        "parameters": [*map(_in_path, param_names(endpoint.path)), *map(_in_query, endpoint.query)],
        "responses": _responses(endpoint, known),
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": known[repr(endpoint.body)]}}
        operation["requestBody"] = {"required": endpoint.body_required, "content": content}
    if endpoint.action is not None:
        operation["security"] = [{}, {"bearer": []}]
        operation["x-skep-action"] = endpoint.action
    return operation


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(param: Param) -> Json:
    described: Json = {"name": param.name, "in": "query", "schema": {"type": param.kind}}
    return described | ({"description": param.help} if param.help else {})


def _responses(endpoint: Endpoint, known: dict[str, Json]) -> Json:
    usual = EVERYWHERE | (WITH_BODY if endpoint.body else {}) | (WITH_RIGHTS if endpoint.action else {})
    usual |= WITH_NAME if param_names(endpoint.path) else {}
    error = {"application/json": {"schema": known[repr(Error)]}}
    told: Json = {str(status): {"description": text, "content": error} for status, text in usual.items()}
    for status, answer in endpoint.answers.items():
        told[str(status)] = _response(endpoint, status, [known[repr(kind)] for kind in _choices(answer)], error)
    return dict(sorted(told.items()))


def _response(endpoint: Endpoint, status: int, schemas: list[Json], error: Json) -> Json:
    if not schemas:
        return {"description": "Nothing."} if status == NO_CONTENT else {"description": "An error.", "content": error}
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    either = {"anyOf": [schema, error["application/json"]["schema"]]} if status >= FIRST_ERROR else schema
    return {
        "description": "Done." if status < FIRST_ERROR else "An error.",
        "content": {endpoint.media: {"schema": either}},
    }
