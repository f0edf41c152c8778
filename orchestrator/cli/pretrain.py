"""``deyo-sweep pretrain``: make the networks that a spec's runs start from, before (or without) running them."""

from __future__ import annotations

import json

import typer

from orchestrator.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("pretrain")(pretrain)


def pretrain(
    spec: options.Spec,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    in_process: options.InProcess = False,
    as_json: options.Json = False,
) -> None:
    """Pretrain a spec's networks, one for each of its pretraining seeds.

    A sweep does this by itself where it needs to; checkpoints that are there already are used. Interrupted
    training goes on from its last saved step. Exits with 1 if a network could not be made.
    """
    from orchestrator.cli.run import place
    from orchestrator.expand import expand
    from orchestrator.pretraining import Pretraining, pretraining_tasks
    from orchestrator.session import cache_folder, driver_options, executor_for

    loaded = options.load(spec, overrides, smoke)
    tasks = pretraining_tasks(expand(loaded), driver_options(loaded))
    if not tasks:
        typer.echo("[]" if as_json else f"{loaded.name}: all networks come with their weights; nothing to pretrain")
        return
    where = place(address, allow_insecure, in_process)

    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    with executor_for(loaded.resources, where, sweep=f"{loaded.name}: pretraining", tasks=len(tasks)) as executor:
        work = Pretraining(tasks=tasks, executor=executor, cache=cache_folder(), report=say)
        work.run()
    if as_json:
        made = work.made
        typer.echo(
            json.dumps(
                [
                    {
                        "key": task.key,
                        "model": task.model,
                        "benchmark": task.benchmark,
                        "seed": task.seed,
                        "path": made[task.key].path if task.key in made else None,
                        "sha256": made[task.key].sha256 if task.key in made else None,
                        "failure": work.failed[task.key].message if task.key in work.failed else None,
                    }
                    for task in tasks
                ],
                indent=2,
            )
        )
    else:
        typer.echo(f"{loaded.name}: {len(work.made)} of {len(tasks)} networks pretrained")
    if work.failed:
        raise typer.Exit(1)
