"""``fleet-gym evaluate`` and ``fleet-gym compare``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from fleet_gym.evaluation.compare import Comparison
    from fleet_gym.evaluation.environments import EnvRequest
    from fleet_gym.evaluation.play import Episode
    from fleet_gym.evaluation.results import EvaluationResult

WIDTH = 110
#: What a shell reports of a program that Ctrl+C ended.
INTERRUPTED = 130


def evaluate(
    env: Annotated[
        str | None,
        typer.Option(
            help="Id registered with Gymnasium, or module:id; by default what the policy file was trained on, else "
            "FleetGym/Navigation-v0."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="scripted, random, a file of save_policy (.pt), or module:function.")
    ] = "scripted",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes over all worlds, exactly.")] = 100,
    num_envs: Annotated[int, typer.Option(min=1, help="Worlds that play at once.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Episode k has seed + k.")] = 0,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps after which an episode is cut off.")] = None,
    num_robots: Annotated[int | None, typer.Option(min=1, help="Robots in each world (this suite only).")] = None,
    robot: Annotated[str | None, typer.Option(help="A known robot or the path of a URDF (this suite only).")] = None,
    dynamics: Annotated[str | None, typer.Option(help="kinematic or physics (this suite only).")] = None,
    renderer: Annotated[str | None, typer.Option(help="auto, raster, tiny or gl (this suite only).")] = None,
    env_kwargs: Annotated[str, typer.Option(help="More arguments of the environment, a JSON object.")] = "{}",
    cameras: Annotated[
        list[str] | None,
        typer.Option(
            help="To record, several times or with commas: overhead, front, names of the environment's cameras, "
            "render, or none."
        ),
    ] = None,
    videos: Annotated[int, typer.Option(min=0, help="Episodes to record, the first ones.")] = 20,
    width: Annotated[int, typer.Option(min=16, help="Of overhead and front, pixels.")] = 320,
    height: Annotated[int, typer.Option(min=16, help="Of overhead and front, pixels.")] = 240,
    confidence: Annotated[float, typer.Option(help="Of the intervals, above 0 and below 1.")] = 0.95,
    profile: Annotated[str, typer.Option(help="Memory and time: light, auto, or off.")] = "light",
    out: Annotated[Path, typer.Option(help="Folder of results, videos and report; a new one for each run.")] = Path(
        "fleet-gym-evaluation"
    ),
) -> None:
    """Play episodes of known seeds with a policy; write results with intervals, videos and a report.

    The same command goes on with a run that was interrupted or killed.
    """
    from fleet_gym.evaluation.environments import DEFAULT_ENV, EnvRequest, from_checkpoint

    kwargs = _json_object("--env-kwargs", env_kwargs)
    ours = {"num_robots": num_robots, "robot": robot, "dynamics": dynamics, "renderer": renderer}
    kwargs.update({name: value for name, value in ours.items() if value is not None})
    request = EnvRequest(
        env_id=env or DEFAULT_ENV,
        num_envs=min(num_envs, episodes),
        kwargs=kwargs,
        max_steps=max_steps,
        cameras=_names(cameras),
        width=width,
        height=height,
    )
    request = from_checkpoint(request, policy, env_given=env is not None)
    _check_ours(request, [name for name, value in ours.items() if value is not None])
    console = _console()
    finished = (out / "results.json").exists()
    result = _evaluate(
        request,
        console,
        policy=policy,
        episodes=episodes,
        seed=seed,
        confidence=confidence,
        out=out,
        videos=videos,
        profile=profile,
    )
    if finished:
        console.print("this run is finished already; its results:")
    elif resumed := int(result.timings["resumed_episodes"]):
        console.print(f"{resumed} of {episodes} episodes were played by an earlier session")
    console.print(metrics_table(result))
    report = out / "report.html"
    console.print(f"results, episodes and videos are in {out.resolve()}", markup=False, soft_wrap=True)
    console.print(f"read the report: {report.resolve().as_uri()}", markup=False, soft_wrap=True)


def _evaluate(
    request: EnvRequest, console: Console, *, policy: str, episodes: int, videos: int, out: Path, **options: Any
) -> EvaluationResult:
    from fleet_gym.evaluation.environments import make_env
    from fleet_gym.evaluation.evaluator import evaluate as run

    facts = {"env_kwargs": _plain(request.kwargs), "camera_size": [request.width, request.height]}
    made = make_env(request)
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    successes = 0

    def report_episode(episode: Episode) -> None:
        nonlocal successes
        successes += bool(episode.success)
        said = "" if episode.success is None else f", {successes} successful"
        progress.update(task, advance=1, description=f"{policy}{said}")

    try:
        with progress:
            task = progress.add_task(policy, total=episodes)
            return run(
                made.env,
                policy,
                episodes=episodes,
                out=out,
                videos=videos if made.records else 0,
                cameras=made.cameras,
                frame_source=made.frame_source,
                config=facts,
                on_episode=report_episode,
                **options,
            )
    except gym.error.DependencyNotInstalled as error:  # what some environments draw with
        raise ImportError(str(error)) from error
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        made.env.close()


def metrics_table(result: EvaluationResult) -> Table:
    """Returns a table with a row per average."""
    from fleet_gym.evaluation.report import format_interval, format_value

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric")
    for title in ("value", f"{100 * result.confidence:g} % interval", "n"):
        table.add_column(title, justify="right")
    for name, estimate in result.metrics.items():
        table.add_row(name, format_value(name, estimate), format_interval(name, estimate), str(estimate.n))
    return table


def compare(
    run_a: Annotated[Path, typer.Argument(help="Folder of an evaluation.")],
    run_b: Annotated[Path, typer.Argument(help="Folder of another one.")],
    out: Annotated[Path, typer.Option(help="The page, or a folder for compare.html.")] = Path("compare.html"),
    confidence: Annotated[float, typer.Option(help="Of the intervals, above 0 and below 1.")] = 0.95,
) -> None:
    """Put two evaluations side by side: differences on the same seeds, with intervals and tests."""
    from fleet_gym.evaluation.compare import compare as compare_runs
    from fleet_gym.evaluation.compare import write_comparison

    comparison = compare_runs(run_a, run_b, confidence=confidence)
    page = write_comparison(comparison, out)
    console = _console()
    console.print(differences_table(comparison))
    for note in comparison.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"read the comparison: {page.resolve().as_uri()}", markup=False, soft_wrap=True)


def differences_table(comparison: Comparison) -> Table:
    """Returns a table with a row per metric of two runs."""
    from fleet_gym.evaluation.compare import p_text
    from fleet_gym.evaluation.report import format_interval, format_value

    level = comparison.metrics[0].difference.confidence
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric")
    for title in ("A", "B", "B - A", f"{100 * level:g} % interval", "n", "test"):
        table.add_column(title, justify="right")
    table.add_column("verdict on B")
    for metric in comparison.metrics:
        difference = metric.difference
        table.add_row(
            metric.name,
            format_value(metric.name, metric.first),
            format_value(metric.name, metric.second),
            format_value(metric.name, difference, signed=True),
            format_interval(metric.name, difference, signed=True),
            f"{difference.n} pairs" if comparison.pairs else f"{metric.first.n}, {metric.second.n}",
            "" if metric.p_value is None else p_text(metric.p_value),
            metric.verdict,
        )
    return table


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def _names(cameras: Sequence[str] | None) -> tuple[str, ...] | None:
    if not cameras:
        return None
    # A JSON object of a camera has commas of its own.
    parts = [[camera] if camera.lstrip().startswith("{") else camera.split(",") for camera in cameras]
    return tuple(name.strip() for part in parts for name in part if name.strip())


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: expected a JSON object, got {text!r} ({error})") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option}: expected a JSON object, got {text!r}")
    return value


def _check_ours(request: EnvRequest, given: Sequence[str]) -> None:
    from fleet_gym.evaluation.environments import find_spec, is_fleet

    if given and not is_fleet(find_spec(request.env_id)):
        option = given[0].replace("_", "-")
        raise typer.BadParameter(
            f"--{option}: expected only with an environment of this suite, got {request.env_id}; others take theirs by "
            "--env-kwargs"
        )


def _plain(kwargs: Any) -> Any:
    return json.loads(json.dumps(dict(kwargs)))
