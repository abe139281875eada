"""Grammars of calls for models in your own process. Needs `pip install 'ferrule[local]'`."""

from __future__ import annotations

from ferrule.models.local.constraint import Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.models.local.processor import ConstraintProcessor
from ferrule.models.local.vocabulary import Vocabulary

__all__ = ["CallForm", "Constraint", "ConstraintProcessor", "Vocabulary"]
