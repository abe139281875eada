"""500 invoices, read into typed data by one batch that survives a kill.

`python pipeline.py job` reads every text in `documents/` into `invoices.jsonl`. Run it again after an interruption, and it continues:
it does not read again what it has read. Without arguments, this starts the job, kills it in the middle, and runs it again.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

import ferrule
from ferrule import InputField, OutputField, Predict, Prediction, Request, Signature, SQLiteStore
from ferrule.testing import ScriptedLM


class Vendor(BaseModel):
    """Who sends the invoice."""

    name: str
    city: str


class Line(BaseModel):
    """One line of an invoice."""

    article: str
    quantity: int = Field(ge=1)
    cents: int


class Invoice(Signature):
    """Read an invoice."""

    text: str = InputField()
    vendor: Vendor = OutputField()
    lines: list[Line] = OutputField()
    total_cents: int = OutputField(desc="As printed.")

    @model_validator(mode="after")
    def adds_up(self) -> Self:
        """Send an answer whose lines do not add up back to the model, with the reason."""
        found = sum(line.quantity * line.cents for line in self.lines)
        if found != self.total_cents:
            raise ValueError(f"the lines add up to {found}, and the total is {self.total_cents}")
        return self


def model(request: Request) -> str:
    """Play the model, so that this runs anywhere. With a real one: `LM("openai/gpt-5-mini", max_concurrency=16)`."""
    text = request.messages[1].text
    if "scan failed" in text:
        raise ferrule.errors.RefusalError("I cannot read this scan.")
    lines = [
        {"article": a, "quantity": int(q), "cents": int(c)}
        for q, a, c in re.findall(r"(\d+) x (\w+) at (\d+)", text)
    ]
    [[name, city, total]] = re.findall(r"(Bakery \w+) in (\w+).*Total (\d+)", text, re.DOTALL)
    if "blurred" in text and "add up" not in request.messages[-1].text:
        lines.pop()  # it overlooks a line, until ferrule says that the sum is wrong
    return json.dumps(
        {"vendor": {"name": name, "city": city}, "lines": lines, "total_cents": int(total)},
    )


def write_documents(folder: Path) -> None:
    """Write the 500 texts. Some are hard to read or unreadable, and some have a wrong total."""
    folder.mkdir()
    for number in range(500):
        quantity, is_wrong = number % 7 + 1, number in {5, 130, 255, 380}
        scan = {0: "blurred", 99: "scan failed"}.get(number % 100, "clear")
        text = f"Bakery {number} in Delft ({scan})\n2 x bread at 250\n{quantity} x roll at 60\nTotal {500 + quantity * 60 + is_wrong}"
        (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")


def job() -> None:
    """Read all documents. The runs are in `job.db`, the results in `invoices.jsonl`."""
    ferrule.configure(lm=ScriptedLM(by=model), adapter=ferrule.JSONAdapter())
    paths = sorted(Path("documents").glob("*.txt"))
    with Path("invoices.jsonl").open("w", encoding="utf-8", buffering=1) as file:

        def write(index: int, result: Any) -> None:
            """Write each result as it arrives, one at a time. When a batch resumes, the earlier ones arrive again, from the store."""
            form = (
                result.outputs.model_dump(mode="json")
                if isinstance(result, Prediction)
                else {"error": reason(result)}
            )
            file.write(json.dumps({"document": paths[index].name, **form}) + "\n")

        results = Predict(Invoice).batch(
            [{"text": path.read_text(encoding="utf-8")} for path in paths],
            store=SQLiteStore("job.db"), batch_id="invoices", max_concurrency=16, return_exceptions=True, on_result=write,
        )  # fmt: skip
    cents = sum(result.outputs.total_cents for result in results if isinstance(result, Prediction))
    print(f"{cents / 100:.2f} euros; {results.usage.calls} calls of the model")
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, Exception):
            print(f"{path.name}: {type(result).__name__}: {reason(result)}")


def reason(error: Exception) -> str:
    """Why an item failed, in one line."""
    return (
        "; ".join(problem for _, problem in error.problems)
        if isinstance(error, ferrule.AdapterParseError)
        else str(error)
    )


def main() -> None:
    """Start the job, kill it in the middle, and run it again."""
    with TemporaryDirectory() as folder:
        write_documents(Path(folder, "documents"))
        command, results = [sys.executable, __file__, "job"], Path(folder, "invoices.jsonl")
        process = subprocess.Popen(command, cwd=folder)
        while not results.exists() or results.read_text(encoding="utf-8").count("\n") < 200:
            time.sleep(0.01)
        process.kill()
        process.wait()
        print("killed", flush=True)
        subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    job() if sys.argv[1:] == ["job"] else main()
