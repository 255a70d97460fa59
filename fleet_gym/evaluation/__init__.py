"""From a policy to a report: playing episodes, intervals around the averages, files, pages."""

from __future__ import annotations

from fleet_gym.evaluation.policies import load_policy, make_policy, save_policy

__all__ = ["load_policy", "make_policy", "save_policy"]
