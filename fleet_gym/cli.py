"""The ``fleet-gym`` command."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fleet_gym.evaluation.command import compare, evaluate
from fleet_gym.profiling.command import memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fleet_gym.demo import EpisodeResult

#: Columns of a table that goes to a file or a pipe, where no terminal says how wide it may be.
PIPED_WIDTH = 110

app = typer.Typer(
    name="fleet-gym",
    help="Fleets of simulated robots with cameras as a Gymnasium vector environment.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# typer raises click's errors, or those of its own copy of click, depending on its version.
show_traceback = False
_UsageError: Any = typer.BadParameter.__bases__[0]


def make_console(*, stderr: bool = False) -> Console:
    """Returns a console that colours and fits terminals, and writes plain wide lines elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPED_WIDTH, highlight=False)


class DemoLogHandler(logging.Handler):
    """Keeps the memory lines for the end of the demo and prints all others at once, above the progress bar.

    Attributes:
        memory_lines: what the memory profiler logged.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self.console = console
        self.memory_lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps or prints one record's message."""
        line = self.format(record)
        if line.startswith("[MEMORY"):
            self.memory_lines.append(line)
        else:
            self.console.print(line, markup=False, soft_wrap=True)


def print_version(value: bool) -> None:
    """Prints the version and ends, if asked to."""
    if value:
        from importlib.metadata import version

        make_console().print(f"fleet-gym {version('fleet-gym')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error comes from.")] = False,
) -> None:
    """Fleets of simulated robots with cameras as a Gymnasium vector environment."""
    global show_traceback
    show_traceback = traceback
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the videos and their gallery.")] = Path("fleet-gym-demo"),
    num_envs: Annotated[int, typer.Option(min=1, help="Worlds.")] = 4,
    num_robots: Annotated[int, typer.Option(min=1, help="Robots in each world.")] = 3,
    robot: Annotated[str, typer.Option(help="A known robot (see `fleet-gym info`) or the path of a URDF.")] = "husky",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each world.")] = 2,
    width: Annotated[int, typer.Option(min=16, help="Width of the videos, pixels.")] = 320,
    height: Annotated[int, typer.Option(min=16, help="Height of the videos, pixels.")] = 240,
    seed: Annotated[int, typer.Option(min=0, help="World i starts from seed + i.")] = 0,
    dynamics: Annotated[str, typer.Option(help="kinematic, or physics: wheels on contact physics.")] = "kinematic",
    renderer: Annotated[str, typer.Option(help="auto, raster, tiny or gl.")] = "auto",
    max_steps: Annotated[int, typer.Option(min=1, help="Control steps after which an episode is cut off.")] = 80,
) -> None:
    """Drive a fleet to its goals among obstacles; record every camera and profile the memory."""
    from fleet_gym.demo import DemoConfig, compile_kernels, run_demo

    console = make_console()
    config = DemoConfig(
        out=out,
        num_envs=num_envs,
        num_robots=num_robots,
        robot=robot,
        episodes=episodes,
        width=width,
        height=height,
        seed=seed,
        dynamics=dynamics,
        renderer=renderer,
        max_episode_steps=max_steps,
    )
    handler = DemoLogHandler(console)
    with console.status("preparing (the first run compiles for some seconds)"):
        compile_kernels(config)
    with logging_to(handler), demo_progress(console) as progress:
        task = progress.add_task(f"{num_envs} worlds x {num_robots} {robot}", total=1.0)

        def report_episode(result: EpisodeResult) -> None:
            if not console.is_terminal:
                console.print(
                    f"world {result.world} episode {result.episode}: {result.steps} steps, return "
                    f"{result.episode_return:.2f}, {'success' if result.success else 'no success'}"
                )

        results = run_demo(config, lambda share: progress.update(task, completed=share), report_episode)
    console.print(episode_table(results))
    for line in handler.memory_lines:
        console.print(line, markup=False, soft_wrap=True)
    videos = sum(len(result.videos) for result in results)
    console.print(
        f"{videos} videos, results.json and memory.jsonl are in {out.resolve()}", markup=False, soft_wrap=True
    )
    console.print(f"look through them: {(out / 'index.html').resolve().as_uri()}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Sends what fleet_gym logs at INFO and above to `handler` while the block runs."""
    logger = logging.getLogger("fleet_gym")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def demo_progress(console: Console) -> Progress:
    """Returns a progress bar that is silent where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def episode_table(results: Sequence[EpisodeResult]) -> Table:
    """Returns a table with a row per episode."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("world", "episode", "steps", "return", "success", "collisions"):
        table.add_column(title, justify="right")
    table.add_column("videos", overflow="fold")
    for result in results:
        table.add_row(
            str(result.world),
            str(result.episode),
            str(result.steps),
            f"{result.episode_return:.2f}",
            "[green]yes[/green]" if result.success else "[red]no[/red]",
            str(result.collisions),
            "\n".join(escape(video) for video in result.videos),
        )
    return table


@app.command()
def check() -> None:
    """Check that everything fleet_gym needs works on this machine; exit code 1 if something does not."""
    from fleet_gym.diagnostics import run_checks

    console = make_console()
    failed = False
    for result in run_checks():
        status = "[green]ok    [/green]" if result.ok else "[red]failed[/red]"
        console.print(f"{status} {result.name:<12} {escape(result.detail)}", soft_wrap=True)
        if not result.ok:
            failed = True
            console.print(f"       {'':<12} remedy: {escape(result.remedy)}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, machine, known robots and paths."""
    from fleet_gym.diagnostics import collect_info

    facts = collect_info()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = make_console()
    for name, value in facts.items():
        if isinstance(value, dict):
            console.print(f"{name}:", markup=False)
            for key, entry in value.items():
                console.print(f"  {key:<15} {entry}", markup=False, soft_wrap=True)
        else:
            text = ", ".join(value) if isinstance(value, list) else value
            console.print(f"{name}: {text}", markup=False, soft_wrap=True)


app.command()(evaluate)
app.command()(compare)
app.command()(memory)


@app.command()
def gallery(
    folders: Annotated[list[Path], typer.Argument(help="Folders of videos, as recorders left them.")],
    out: Annotated[
        Path | None, typer.Option(help="The page, or a folder for index.html; by default in the first folder.")
    ] = None,
) -> None:
    """Write one HTML page to look through the videos of one or several folders."""
    from fleet_gym.video.gallery import write_gallery

    make_console().print(str(write_gallery(folders, out).resolve()), markup=False, soft_wrap=True)


def main() -> None:
    """Runs the command line; bad input is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        fail(error.format_message())
    except (ValueError, TypeError, OSError, ImportError) as error:
        if show_traceback:
            raise
        fail(str(error))
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> NoReturn:
    """Prints one line that says what was wrong and ends with exit code 2."""
    text = " ".join(message.split())
    make_console(stderr=True).print(f"[red]error:[/red] {escape(text)}", soft_wrap=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
