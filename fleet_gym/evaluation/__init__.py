"""From a policy to a report: playing episodes, intervals around the averages, files, pages."""

from __future__ import annotations

from fleet_gym.evaluation.compare import Comparison, compare, write_comparison
from fleet_gym.evaluation.evaluator import evaluate
from fleet_gym.evaluation.play import Episode
from fleet_gym.evaluation.policies import Policy, load_policy, make_policy, save_policy
from fleet_gym.evaluation.report import write_report
from fleet_gym.evaluation.results import EvaluationResult
from fleet_gym.evaluation.run_folder import read_run
from fleet_gym.evaluation.statistics import Estimate

__all__ = [
    "Comparison",
    "Episode",
    "Estimate",
    "EvaluationResult",
    "Policy",
    "compare",
    "evaluate",
    "load_policy",
    "make_policy",
    "read_run",
    "save_policy",
    "write_comparison",
    "write_report",
]
