"""`dspy.Evaluate`: DSPy's arguments and result, over the core's table and files."""

# pyright: basic

from __future__ import annotations

import logging
import string
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

from ferrule.compat.dspy.modules import Parallel
from ferrule.compat.dspy.values import Prediction
from ferrule.errors import InputError
from ferrule.programs.lifecycle.evaluate import EvaluatedItem, Evaluation
from ferrule.values.conversation.exchange import Usage

_logger = logging.getLogger("ferrule.compat.dspy")


class EvaluationResult(Prediction):
    def __init__(self, score, results):
        super().__init__(score=score, results=results)

    def __repr__(self):
        return (
            f"EvaluationResult(score={self.score}, results=<list of {len(self.results)} results>)"
        )


class Evaluate:
    def __init__(
        self,
        *,
        devset,
        metric=None,
        num_threads=None,
        display_progress=False,
        display_table=False,
        max_errors=None,
        provide_traceback=None,
        failure_score=0.0,
        save_as_csv=None,
        save_as_json=None,
        **_,
    ):
        self.devset, self.metric, self.num_threads = devset, metric, num_threads
        self.display_progress, self.display_table = display_progress, display_table
        self.max_errors, self.provide_traceback = max_errors, provide_traceback
        self.failure_score = failure_score
        self.save_as_csv, self.save_as_json = save_as_csv, save_as_json

    def __call__(
        self,
        program,
        metric=None,
        devset=None,
        num_threads=None,
        display_progress=None,
        display_table=None,
        callback_metadata=None,
        save_as_csv=None,
        save_as_json=None,
    ):
        metric = metric or self.metric
        devset = self.devset if devset is None else devset
        if metric is None:
            raise InputError("`Evaluate` has no `metric`: pass it here or when it is made.")
        if display_progress is None:
            display_progress = self.display_progress
        if display_table is None:
            display_table = self.display_table

        def judge(example):
            prediction = program(**example.inputs())
            return prediction, metric(example, prediction)

        began = time.monotonic()
        outcome: Any = Parallel(
            num_threads or self.num_threads,
            self.max_errors,
            access_examples=False,
            return_failed_examples=True,
            disable_progress_bar=not display_progress,
        )([(judge, example) for example in devset])
        judged = outcome[0]
        results = [
            (example, *(found or (Prediction(), self.failure_score)))
            for example, found in zip(devset, judged, strict=True)
        ]
        total = sum(_number(score) for _, _, score in results)
        name = getattr(metric, "__name__", "") or "score"
        items = [
            EvaluatedItem(dict(example), prediction, {name: _number(score)})
            for example, prediction, score in results
        ]
        evaluation = Evaluation(items, [name], Usage(), time.monotonic() - began)
        percent = round(100 * total / len(devset), 2) if devset else 0.0
        _logger.info("Average Metric: %s / %d (%s%%)", total, len(devset), percent)
        if display_table:
            most = None if display_table is True else int(display_table)
            sys.stdout.write(f"{evaluation.table(most)}\n")
        for path, text in (
            (save_as_csv or self.save_as_csv, evaluation.to_csv),
            (save_as_json or self.save_as_json, evaluation.to_json),
        ):
            if path:
                Path(path).write_text(text(), encoding="utf-8")
        return EvaluationResult(percent, results)


def _number(score):
    return float(getattr(score, "score", score))


def answer_exact_match(example, pred, trace=None, frac=1.0):
    expected = example.answer
    if isinstance(expected, str):
        expected = [expected]
    words = _words(pred.answer)
    if frac >= 1.0:
        return any(words == _words(answer) for answer in expected)
    return max(_f1(words, _words(answer)) for answer in expected) >= frac


def normalize_text(text):
    """A text without case, punctuation and articles, as answers are compared."""
    return " ".join(_words(text))


def _words(text):
    plain = unicodedata.normalize("NFD", text.lower())
    kept = "".join(character for character in plain if character not in string.punctuation)
    return [word for word in kept.split() if word not in {"a", "an", "the"}]


def _f1(found, expected):
    """The harmonic mean of the shares of words that both texts have."""
    shared = sum((Counter(found) & Counter(expected)).values())
    if not shared:
        return float(found == expected)
    return 2 * shared / (len(found) + len(expected))
