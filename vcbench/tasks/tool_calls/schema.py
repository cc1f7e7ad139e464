"""Values that a model writes as bare text, typed by the function's JSON schema; `jsonschema` decides what fits.

Readings of a text, in order: JSON and Python literals other than texts, the text as it is, then looser ones (numbers
such as `007`, quoted texts). The first that the schema allows is the value. Where none is allowed, the types alone
decide; a text that fits nothing stays a text, and so does one whose schema says nothing.
Source: the order is that of vLLM's parsers, in which a text is the last of several types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from vcbench.tasks.json_values import NotJSONError, python_literal, whole_json

Schema = Mapping[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string", "date": "string",
    "datetime": "string", "int": "integer", "int32": "integer", "int64": "integer", "uint": "integer",
    "long": "integer", "short": "integer", "unsigned": "integer", "float": "number", "float32": "number",
    "float64": "number", "double": "number", "decimal": "number", "num": "number", "bool": "boolean", "dict": "object",
    "map": "object", "mapping": "object", "struct": "object", "hashmap": "object", "list": "array", "tuple": "array",
    "arr": "array", "arraylist": "array", "sequence": "array", "set": "array", "none": "null", "nonetype": "null",
}  # fmt: skip
"""Names of types that declarations in the wild have beside JSON Schema's."""
ANY = "any"
SCHEMAS = ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "unevaluatedProperties",
           "unevaluatedItems", "items", "additionalItems")  # fmt: skip
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
          "maxContains")  # fmt: skip
ROOT = "urn:parameters"


def plain_schema(schema: Any) -> Any:
    """The schema in JSON Schema's own words, without what decides nothing, such as descriptions.

    Takes what declarations have in its place: other names of types, `nullable`, a list of `items`. A keyword of the
    wrong form is left out.
    """
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else {}
    made: dict[str, Any] = {}
    if types := _types(schema.get("type")):
        made["type"] = types[0] if len(types) == 1 else types
    for keyword, value in schema.items():
        if (kept := _kept(keyword, value)) is not None:
            made[keyword if keyword != "items" or not isinstance(value, list) else "prefixItems"] = kept
    if "const" in schema:
        made["const"] = schema["const"]
    if schema.get("nullable") is True and not any(name in made for name in MAPS[2:4]):
        return {"anyOf": [made, {"type": "null"}]}
    return made


def value_of(text: str, parameters: Schema, name: str) -> Any:
    """The value that a text stands for in a function's parameter.

    Args:
        parameters: the function's, by `plain_schema`.
    """
    declared = (parameters.get("properties") or {}).get(name)
    if not isinstance(declared, Mapping) or not declared:
        return text
    readings = list(_readings(text))
    for allows in (_allows(json.dumps(parameters), name), _types_allow(parameters, declared)):
        for value in readings:
            if allows(value):
                return value
    # Nothing fits, so a text does not either, and no value is what is meant.
    return None if text.strip().lower() in ("null", "none") else text


def _readings(text: str) -> Iterator[Any]:
    """What a text may stand for; texts among the strict readings come after the text itself."""
    quoted: list[Any] = []
    for read in (whole_json, _literal):
        try:
            value = read(text)
        except NotJSONError:
            continue
        if isinstance(value, str):
            quoted.append(value)
        else:
            yield value
    yield text
    word = text.strip()
    if word.lower() in ("true", "false"):
        yield word.lower() == "true"
    if word.lower() in ("null", "none"):
        yield None
    for loose in (_whole, python_literal):
        try:
            value = loose(word)
        except (ValueError, OverflowError):
            continue
        if not isinstance(value, str):
            yield value
    yield from (word, *quoted)


def _literal(text: str) -> Any:
    """Lists, objects and words of Python's; numbers and tuples, which a text may well mean otherwise, come later."""
    value = python_literal(text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise NotJSONError("a number")
    if isinstance(value, list) and not text.strip().startswith("["):
        raise NotJSONError("a tuple")
    return value


def _whole(text: str) -> int:
    if not text.isascii():
        raise NotJSONError("no number")
    return int(text)


@lru_cache(maxsize=512)
def _allows(parameters: str, name: str) -> Callable[[Any], bool]:
    """Whether the schema of one parameter allows a value; nothing is allowed where the schema cannot be followed."""
    from jsonschema import Draft202012Validator
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root = DRAFT202012.create_resource(json.loads(parameters))
    pointer = quote(name.replace("~", "~0").replace("/", "~1"))
    # An empty registry but for the parameters: nothing is ever fetched.
    registry: Registry[Any] = Registry().with_resource(ROOT, root)
    validator = Draft202012Validator({"$ref": f"{ROOT}#/properties/{pointer}"}, registry=registry)

    def allows(value: Any) -> bool:
        try:
            return bool(validator.is_valid(value))
        except (Unresolvable, RecursionError, OverflowError, re.error):
            return False

    return allows


def _types_allow(parameters: Schema, schema: Any) -> Callable[[Any], bool]:
    types = _possible(parameters, schema, depth=0)
    return lambda value: any(name in types for name in _types_of(value))


def _possible(parameters: Schema, schema: Any, *, depth: int) -> set[str]:
    """The types that a schema's values may have, whatever else it asks of them."""
    if not isinstance(schema, Mapping) or depth > len(TYPES):
        return set(TYPES)
    found = set(TYPES)
    if "type" in schema:
        found &= {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
        found |= {"integer"} if "number" in found else set()
    members = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    if members:
        found &= {name for member in members for name in _types_of(member)}
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            found &= set().union(*(_possible(parameters, each, depth=depth + 1) for each in schema[keyword]))
    for each in schema.get("allOf", ()):
        found &= _possible(parameters, each, depth=depth + 1)
    if "$ref" in schema:
        found &= _possible(parameters, _resolved(parameters, schema["$ref"]), depth=depth + 1)
    return found


def _resolved(parameters: Schema, reference: str) -> Any:
    """What a reference within the parameters names; an empty schema where it leads elsewhere."""
    found: Any = parameters
    where, _, pointer = reference.partition("#")
    if where:
        return {}
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            return {}
        found = found[key]
    return found


def _types_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("integer", "number") if value.is_integer() else ("number",)
        case str():
            return ("string",)
        case list():
            return ("array",)
    return ("object",)


def _types(declared: Any) -> list[str]:
    """JSON Schema's names of the declared types; none where one of them is not known."""
    found: list[str] = []
    for name in declared if isinstance(declared, list) else [declared]:
        known = _type(name) if isinstance(name, str) else []
        if not known:
            return []
        found += [each for each in known if each not in found]
    return found


def _type(name: str) -> list[str]:
    word = name.strip().lower()
    if word == ANY:
        return list(TYPES)
    if word.endswith("[]"):
        return ["array"]
    if optional := re.fullmatch(r"optional\[(.*)\]", word):
        inner = _type(optional[1])
        return [*inner, "null"] if inner else []
    head = re.match(r"[a-z]+\d*", word)
    base = head[0] if head else ""
    known = ALIASES.get(base, base)
    return [known] if known in TYPES else []


def _kept(keyword: str, value: Any) -> Any:
    """A keyword's value as JSON Schema has it; None where the keyword decides nothing or has no such value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if keyword in SCHEMAS and isinstance(value, Mapping | bool):
        return plain_schema(value)
    if (keyword in LISTS or keyword == "items") and isinstance(value, list) and value:
        return [plain_schema(each) for each in value]
    if keyword in MAPS and isinstance(value, Mapping):
        return {name: plain_schema(each) for name, each in value.items()}
    if keyword == "required" and isinstance(value, list):
        return [name for name in value if isinstance(name, str)]
    if keyword == "pattern" and isinstance(value, str):
        return value if _compiles(value) else None
    kept = (
        (keyword in NUMBERS and number and (keyword != "multipleOf" or value > 0))
        or (keyword in COUNTS and number and value >= 0)
        or (keyword == "enum" and isinstance(value, list) and bool(value))
        or (keyword == "$ref" and isinstance(value, str))
        or (keyword == "uniqueItems" and isinstance(value, bool))
    )
    return value if kept else None


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
