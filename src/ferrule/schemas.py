"""JSON Schema as providers and grammars take it: what changes, and what is lost."""

from __future__ import annotations

from ferrule.schema.lowering.lower import LoweredSchema, LoweredTools, lower_schema, lower_tools
from ferrule.schema.lowering.rules import SchemaLoss

__all__ = ["LoweredSchema", "LoweredTools", "SchemaLoss", "lower_schema", "lower_tools"]
