"""The index of experiments: what each spec's header says, its cost from measured speeds, and README.md's table.

python -m experiments.index            # write the Cost lines, README.md's table and SPEC.md's tables anew
"""

from __future__ import annotations

import csv
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deyo.types import DataError
from experiments import reference
from orchestrator.cost import CostModel
from orchestrator.types import RunConfig

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
BEGIN, END = "<!-- index: begin -->", "<!-- index: end -->"
OTHERS = ("quickstart", "colored_digits")
"""Specs that are no experiment of the paper: their headers are their own."""
KEYS = ("Data", "Cost", "Expect", "Silent", "State")
LENGTHS = {"image-folder": 1_000, "cifar10-jpeg": 10_000}
"""Images of one condition of the sets that ``results`` were made on (orchestrator.cost knows the published ones)."""
PRETRAINING = {"waterbirds": (4_795 * 200, 1_100.0), "colored-mnist": (40_000 * 20, 8_000.0)}
"""Images that pretraining one network sees, and images per second on an H100 (guesses, not measured)."""
_FIELD = re.compile(rf"# ({'|'.join(KEYS)}): *(.*)")


@dataclass(frozen=True, kw_only=True)
class Header:
    """A spec's header comment: its title, the commands to type, and the paragraphs of ``KEYS``."""

    title: str
    commands: tuple[str, ...]
    fields: dict[str, str]

    @property
    def experiment(self) -> str:
        """The paper's table or figure, or the title's first words."""
        return self.title.partition(":")[0]


def spec_files() -> list[Path]:
    """The experiments' specs: tables by number, then figures, the proposition, and the others."""
    found = [path for path in FOLDER.glob("*.yaml") if path.stem not in OTHERS]

    def place(path: Path) -> tuple[int, int, str]:
        match = re.match(r"([tfp])(\d+)", path.stem)
        return ("tfp".index(match[1]), int(match[2]), path.stem) if match else (3, 0, path.stem)

    return sorted(found, key=place)


def read_header(path: Path) -> Header:
    """The comment at the top of a spec."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line)
    fields: dict[str, str] = {}
    key = ""
    for line in lines:
        if match := _FIELD.match(line):
            key = match[1]
            fields[key] = match[2]
        elif key:
            fields[key] += "\n" + line.lstrip("# ").rstrip()
    commands = tuple(line[1:].strip() for line in lines if line[1:].strip().startswith("deyo-sweep"))
    return Header(title=lines[0].lstrip("# ").rstrip("."), commands=commands, fields=fields)


def overrides(path: Path) -> list[list[str]]:
    """The ``--set`` values of each line of a header that offers some."""
    found = [re.findall(r"--set (?:'([^']+)'|(\S+))", line) for line in read_header(path).fields["Silent"].splitlines()]
    return [[quoted or plain for quoted, plain in line] for line in found if line]


@cache
def speeds() -> dict[tuple[str, str, int], tuple[str, float]]:
    """(method, network, batch size) -> (device, images per second)."""
    with (FOLDER / "speeds.csv").open(encoding="utf-8", newline="") as lines:
        return {
            (row["method"], row["model"], int(row["batch_size"])): (row["device"], float(row["images_per_second"]))
            for row in csv.DictReader(lines)
        }


def images_of(config: RunConfig) -> int:
    """Length of a run's stream; 0 where nothing is known (analyses that look at a few images)."""
    whole = LENGTHS.get(config.benchmark)
    if whole is None:
        return CostModel().images(config) or 0
    whole *= 2 if config.scenario == "label-shift" else len(config.corruptions) or 1  # draws: two for each image
    return min(whole, config.max_images or whole)


def cost_of(runs: Iterable[RunConfig]) -> str:
    """Runs, images and hours in words. Hours are images divided by the speeds of ``speeds.csv``."""
    runs = list(runs)
    images, hours, unknown = 0, defaultdict(float), set()
    for run in runs:
        if run.method in ("transforms", "proposition"):
            continue
        count = images_of(run)
        images += count
        known = speeds().get((run.method, run.model.split("+")[0], run.batch_size))
        if known is None:
            unknown.add(f"{run.method} on {run.model}")
        else:
            hours[known[0]] += count / known[1] / 3600
    if not images:
        return f"{_counted(len(runs), 'run')}, seconds on a CPU."
    text = f"{_counted(len(runs), 'run')}, {images:,} images"
    text += "".join(f", about {_hours(amount, device)}" for device, amount in hours.items())
    if unknown:
        text += f" (without {', '.join(sorted(unknown))})"
    return f"{text}{_pretraining(runs)}; an estimate (speeds.csv)."


def _hours(amount: float, device: str) -> str:
    kind = "core-hours" if "CPU" in device else "GPU-hours"
    return f"{amount:.1f} {kind} on one {device}" if amount >= 0.1 else f"{math.ceil(60 * amount)} min on one {device}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + "s" * (count != 1)


def _pretraining(runs: Iterable[RunConfig]) -> str:
    made = {(r.benchmark, r.model, r.pretrain_seed) for r in runs if r.pretrain_seed is not None}
    hours = sum(PRETRAINING[b][0] / PRETRAINING[b][1] for b, _, _ in made if b in PRETRAINING) / 3600
    return f"; pretraining of {len(made)} networks before, about {hours:.1f} GPU-hours" if made else ""


def with_cost(path: Path) -> str:
    """The spec's text with its Cost paragraph as computed now; unchanged where a weight file it names is not here."""
    from orchestrator.expand import expand
    from orchestrator.spec import load_spec

    text = path.read_text(encoding="utf-8")
    try:
        lines = textwrap.wrap(cost_of(expand(load_spec(path))), 105)
    except DataError:
        return text
    paragraph = "# Cost:    " + "\n#          ".join(lines) + "\n"
    return re.sub(r"# Cost: .*?\n(?=# [A-Z])", lambda _: paragraph, text, count=1, flags=re.DOTALL)


def table() -> str:
    """README.md's table: a row for each spec."""
    rows = ["| experiment | spec | command | data | cost | state |", "|---|---|---|---|---|---|"]
    for path in spec_files():
        header = read_header(path)
        cells = (
            header.title,
            f"[{path.stem}]({path.name})",
            f"`{header.commands[0]}`",
            *(header.fields[key].replace("\n", " ") for key in ("Data", "Cost", "State")),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """README.md's text with the table as it would be written now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    for path in spec_files():
        path.write_text(with_cost(path), encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    reference.SPEC.write_text(reference.with_parts(reference.SPEC.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
