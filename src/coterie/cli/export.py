"""The command that writes a policy for other programs: export. It imports heavy modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.app import Checkpoint, RunPath, Trust, app


@app.command("export")
def export_(
    run: RunPath,
    onnx: Annotated[str | None, typer.Option(metavar="FILE", help="ONNX file to write")] = None,
    torchscript: Annotated[str | None, typer.Option(metavar="FILE", help="TorchScript file to write")] = None,
    group: Annotated[str | None, typer.Option(help="group whose policy is exported (default: the only one)")] = None,
    checkpoint: Checkpoint = "best",
    trust: Trust = False,
) -> None:
    """Write a run's policy as a graph for other programs, and check it."""
    from coterie.core.lookup import whose
    from coterie.studies.export import export

    found = export(run, onnx, torchscript, group, checkpoint, whose(trust))
    print(f"group '{found.group}', checkpoint {checkpoint}, agents {', '.join(found.agents)}")
    for name, shape in found.inputs.items():
        print(f"input    {name} {shape}")
    print(f"output   {', '.join(found.outputs)}")
    for path, difference in found.differences.items():
        print(f"checked  {path}: {found.decisions} steps decided alike, outputs differ by at most {difference:.1g}")
