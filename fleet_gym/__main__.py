"""``python -m fleet_gym`` is the command ``fleet-gym``."""

from fleet_gym.cli import main

main()
