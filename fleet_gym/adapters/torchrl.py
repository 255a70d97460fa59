"""`torchrl_env`: a vector environment in TorchRL's `GymWrapper`."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from fleet_gym.adapters._views import VectorView, check_mode

try:
    from torchrl.envs.libs.gym import GymWrapper
except ModuleNotFoundError as error:
    if error.name not in ("torchrl", "torch", "tensordict"):
        raise
    raise ImportError("torchrl_env needs TorchRL: pip install 'fleet-gym[torchrl]'") from None


def torchrl_env(env: VectorEnv[Any, Any, Any], **kwargs: Any) -> Any:
    """Makes a TorchRL environment of batch size (num_envs,).

    `GymWrapper` alone takes a bare `FleetVectorEnv`; this also checks the autoreset mode, and lets any vector wrappers
    stand in between: `GymWrapper` looks for ``autoreset_mode`` on the outermost and for ``num_envs`` on the innermost.

    The state is called ``observation``, as TorchRL names the one state of an environment; images are
    ``("camera_obs", name)``. Infos, whose keys are the same in every step, come along after
    ``.auto_register_info_dict()``.

    Args:
        env: a vector environment in DISABLED mode, possibly wrapped. TorchRL resets what has ended.
        **kwargs: of `torchrl.envs.GymWrapper`.

    Returns:
        The `torchrl.envs.GymWrapper`.

    Raises:
        ImportError: without TorchRL.
        TypeError: when `env` is no vector environment.
        ValueError: when its autoreset mode is another.
    """
    check_mode(env, AutoresetMode.DISABLED, "TorchRL")
    return GymWrapper(VectorView(env), **kwargs)
