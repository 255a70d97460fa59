"""Draws success over steps, mean and range over runs: ``python docs/images/learning_curves.py FIGURE RUN...``."""

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

#: The scripted policy on the same 200 episodes.
SCRIPTED = 0.99


def main(figure: Path, runs: list[Path]) -> None:
    """Writes the figure, and its numbers to the screen."""
    tables = []
    for run in runs:
        with (run / "progress.csv").open(newline="") as file:
            tables.append([(int(row["steps"]), float(row["success"])) for row in csv.DictReader(file)])
    steps = np.array([row[0] for row in tables[0]]) / 1e6
    success = 100 * np.array([[row[1] for row in table] for table in tables])
    _, axes = plt.subplots(figsize=(7, 3.6))
    axes.fill_between(steps, success.min(0), success.max(0), alpha=0.2, label=f"range of {len(runs)} seeds")
    axes.plot(steps, success.mean(0), marker="o", markersize=3, label="mean")
    axes.axhline(100 * SCRIPTED, color="grey", linestyle="--", linewidth=1, label="scripted policy")
    axes.set(xlabel="million world steps", ylabel="success, %", ylim=(0, 102), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    plt.tight_layout()
    plt.savefig(figure, dpi=120)
    for place in range(len(steps)):
        sys.stdout.write(
            f"{steps[place]:.2f} M: mean {success[:, place].mean():.1f} %, {sorted(success[:, place].tolist())}\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(run) for run in sys.argv[2:]])
