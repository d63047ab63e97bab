"""`pinlater demo`: the command.

Promises exit code 1 if the demo did not pass.
"""

from __future__ import annotations

from pathlib import Path

import click

from pinlater.cli.command_base import Command
from pinlater.cli.long_running import finish
from pinlater.cli.settings import Settings, common_options, json_option


@click.command("demo", cls=Command)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("demo-output"),
    help="Folder for the results. [default: demo-output]",
)
@click.option("--images", type=click.IntRange(20), default=200, help="Size of the sample set. [default: 200]")
@common_options(hidden=True)
@json_option
@click.pass_obj
def demo(settings: Settings, folder: Path | None, output: Path, images: int) -> int:
    """Watch workers make thumbnails while one of them is killed.

    The images are those in FOLDER, or a sample set. The demo starts a server of its own and ignores --url. Exit code 1
    if a thumbnail is missing at the end.
    """
    from pinlater.cli.demo.run import run_demo

    return finish(settings, "demo", run_demo(folder, output=output, images=images))
