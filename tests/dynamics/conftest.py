import gc

import pytest
from physics_worlds import open_clients

from fleet_gym.dynamics.physics import PhysicsDynamics


@pytest.fixture
def make():
    """Makes dynamics that are closed after the test."""
    made = []

    def build(scene, num_envs=1, control_dt=0.1, **kwargs):
        made.append(PhysicsDynamics(scene, num_envs, control_dt=control_dt, **kwargs))
        return made[-1]

    yield build
    for dynamics in made:
        dynamics.close()


@pytest.fixture
def extra_clients():
    """Counts the PyBullet clients that are open now and were not when the test began."""
    gc.collect()
    before = open_clients()
    return lambda: len(open_clients() - before)
