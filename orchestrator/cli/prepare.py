"""``deyo-sweep prepare``: check the data of a spec and decode or generate it once, before any run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options

if TYPE_CHECKING:
    from deyo.cache_build import Progress
    from deyo.types import ImageSet
    from orchestrator.data_needs import DataNeeds

Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes or threads (default: one a core).")]
Device = Annotated[str, typer.Option("--device", help="Where corruptions are made: cpu, or cuda.")]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("prepare")(prepare)


def prepare(
    spec: options.Spec,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    skip_bad: options.SkipBad = False,
    workers: Workers = None,
    device: Device = "cpu",
    as_json: options.Json = False,
) -> None:
    """Check a spec's data and keep it as arrays that runs map into memory.

    Clean source images and training images too, where a method or the sweep's own pretraining needs them. What is
    there already is only checked; an interrupted call goes on where it stopped; two at once share the work. Exits
    with 2 if data is missing or wrong, after everything else is prepared.
    """
    from deyo.benchmarks import open_benchmark
    from orchestrator.data_needs import data_needs
    from orchestrator.expand import expand

    loaded = options.load(spec, overrides, smoke)
    made, errors = [], []
    with shown(quiet=as_json) as progress:
        for needs in data_needs(expand(loaded)):
            benchmark = open_benchmark(needs.benchmark, roots=loaded.data, skip_bad=skip_bad, **needs.options)
            for images, error in build(benchmark, needs, workers, device, progress):
                if images is not None:
                    made.append(images)
                    progress.finished(images)
                else:
                    errors.append(error)
            progress.note(notes(benchmark))
    if as_json:
        typer.echo(json.dumps({"prepared": [_as_row(images) for images in made], "errors": errors}, indent=2))
    else:
        for error in errors:
            typer.echo(f"error: {error}", err=True)
        typer.echo(f"{loaded.name}: {_counted(made)}, {len(errors)} not")
    if errors:
        raise typer.Exit(2)


def build(
    benchmark: Any, needs: DataNeeds, workers: int | None, device: str, progress: Progress
) -> Iterator[tuple[ImageSet | None, str]]:
    """Each array that is needed, or the message of what is wrong with its data. One set may serve two ends."""
    from deyo.cache import prepare
    from deyo.types import DataError

    how: dict[str, Any] = {"workers": workers, "device": device, "progress": progress}
    for condition in needs.conditions:
        try:
            yield prepare(benchmark, [condition], **how)[0], ""
        except (DataError, MemoryError, OSError) as error:  # a disk that is full, or too little memory to decode
            yield None, str(error)
    seen: set[str] = set()
    for ask in needs.further(benchmark).values():
        try:
            images, error = ask(), ""
        except (DataError, MemoryError, OSError) as problem:
            images, error = None, str(problem)
        if (name := images.name if images else error) not in seen:
            seen.add(name)
            yield images, error


def notes(benchmark: Any) -> list[str]:
    """What is worth knowing of the data: ColoredMNIST's realised correlations. None where the data is missing."""
    from deyo.types import DataError

    try:
        found = benchmark.correlations() if hasattr(benchmark, "correlations") else {}
    except DataError:
        return []
    return [_correlation(benchmark.name, *item) for item in found.items()]


class _Lines:
    """Progress as plain lines: one when an array is begun, one when it is ready. ``quiet`` shows nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self._begun = quiet, set()

    def __call__(self, name: str, done: int, total: int) -> None:
        if name not in self._begun and not self.quiet:
            self._begun.add(name)
            waiting = " (waiting for another process that builds it)" if done < 0 else ""
            typer.echo(f"{name}: {total:,} images{waiting}")

    def finished(self, images: ImageSet) -> None:
        if not self.quiet:
            skipped = f", {images.skipped} left out" if images.skipped else ""
            how = "read directly, not kept" if _is_direct(images) else "ready"
            typer.echo(f"{images.name}: {how}, {len(images):,} images{skipped}, fingerprint {images.fingerprint[:12]}")

    def note(self, lines: list[str]) -> None:
        for line in [] if self.quiet else lines:
            typer.echo(line)


class _Bars(_Lines):
    """The same on a terminal, with a bar for the array that is being built."""

    def __init__(self, bars: Any) -> None:
        super().__init__()
        self._bars, self._tasks = bars, {}

    def __call__(self, name: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        text = f"{name} (waiting for another process)" if done < 0 else name
        self._bars.update(self._tasks[name], completed=max(done, 0), description=text)

    def finished(self, images: ImageSet) -> None:
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()
        super().finished(images)


@contextmanager
def shown(*, quiet: bool) -> Iterator[_Lines]:
    """Progress for people: bars on a terminal, lines elsewhere; warnings about data as lines too."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from deyo.cache import PreparedWarning
    from orchestrator.told import Told
    from orchestrator.types import Notice

    told = Told(lambda text: typer.echo(f"warning: {text}", err=True))

    def tell(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        told.hear(Notice(text=str(message), array=getattr(message, "array", "")))

    console = Console()
    with warnings.catch_warnings():
        warnings.simplefilter("always", PreparedWarning)
        warnings.showwarning = tell
        if quiet or not console.is_terminal:
            yield _Lines(quiet)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            yield _Bars(bars)


def _correlation(name: str, environment: str, realised: dict[str, Any]) -> str:
    """How often the colour is the class's, in one environment of ColoredMNIST's recipe."""
    return (
        f"{name} {environment}: the colour follows the clean label in {realised['clean']:.2%} and the noisy one in "
        f"{realised['noisy']:.2%} of {realised['images']:,} images"
    )


def _is_direct(images: ImageSet) -> bool:
    """Whether there was no room for its array: every run reads the source."""
    from deyo.cache import SourcePixels

    return isinstance(images.pixels, SourcePixels)


def _counted(made: list[ImageSet]) -> str:
    direct = sum(map(_is_direct, made))
    return f"{len(made) - direct} array(s) ready" + (f", {direct} read directly for lack of room" if direct else "")


def _as_row(images: ImageSet) -> dict[str, Any]:
    return {
        "name": images.name,
        "images": len(images),
        "skipped": images.skipped,
        "fingerprint": images.fingerprint,
        "read_directly": _is_direct(images),
    }
