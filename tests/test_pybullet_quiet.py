"""PyBullet's own output never reaches descriptors 1 and 2, and is in the debug log."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from fleet_gym import _pybullet
from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path, quiet_descriptors


def run_python(code, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, **kwargs
    )


def test_importing_and_loading_print_nothing_and_the_debug_log_has_the_lines(tmp_path):
    log = tmp_path / "debug.log"
    done = run_python(
        f"""
        import logging
        handler = logging.FileHandler({str(log)!r})
        logging.getLogger("fleet_gym.pybullet").addHandler(handler)
        logging.getLogger("fleet_gym.pybullet").setLevel(logging.DEBUG)
        import numpy as np
        import fleet_gym
        from fleet_gym.dynamics.physics import PhysicsDynamics
        from fleet_gym.world.robots import known_robots, robot_models
        from fleet_gym.world.scene import BodySpec, Scene, Shape
        from fleet_gym.world.state import WorldSample, yaw_quaternion
        count = len(known_robots())
        scene = Scene(robot_models(list(known_robots()), count))
        dynamics = PhysicsDynamics(scene, 1, control_dt=0.1)
        position = np.zeros((1, count, 3))
        position[0, :, 0] = 3.0 * np.arange(count)
        everyone = np.ones((1, count), dtype=bool)
        nothing = np.zeros((1, 0, 3)), np.zeros((1, 0, 4)), np.zeros((1, 0), dtype=bool)
        sample = WorldSample(position, yaw_quaternion(np.zeros((1, count))), everyone, *nothing)
        dynamics.reset(np.array([0]), sample)
        dynamics.step(np.zeros((1, count, 2)), np.array([True]))
        dynamics.close()
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""
    lines = log.read_text()
    assert "build time" in lines
    assert "b3Warning" in lines


def test_importing_the_module_does_not_import_pybullet():
    done = run_python("import fleet_gym._pybullet, fleet_gym.world.robots, sys; print('pybullet' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_c_output_is_caught_and_logged_and_python_output_is_not_lost(capfd, caplog):
    caplog.set_level("DEBUG", "fleet_gym.pybullet")
    sys.stdout.write("before\n")
    with quiet_descriptors():
        os.write(1, b"from C, one\n")
        os.write(2, b"from C, two\xff\n")
    sys.stdout.write("after\n")
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert (out, err) == ("before\nafter\n", "")
    assert "from C, one" in caplog.messages
    assert any(line.startswith("from C, two") for line in caplog.messages)


def test_descriptors_come_back_after_an_exception_and_when_nested(capfd, caplog):
    caplog.set_level("DEBUG", "fleet_gym.pybullet")

    def fail_loudly():
        with quiet_descriptors():
            with quiet_descriptors():
                os.write(1, b"inner")
            os.write(1, b"outer")
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail_loudly()
    os.write(1, b"visible")
    assert capfd.readouterr().out == "visible"
    assert {"inner", "outer"} <= set(caplog.messages)


def test_threads_do_not_swap_each_others_descriptors(capfd):
    def work():
        for _ in range(20):
            with quiet_descriptors():
                os.write(1, b"hidden")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(1, b"visible")
    assert capfd.readouterr().out == "visible"


def test_no_descriptors_are_used_up():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with quiet_descriptors():
            pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("closed", ["os.close(1)", "os.close(2)", "os.close(1); os.close(2); sys.stdout = None"])
def test_daemons_without_standard_streams_can_load(tmp_path, closed):
    answer = tmp_path / "answer"
    done = run_python(
        f"""
        import os, sys
        {closed}
        from fleet_gym.world.robots import robot_model
        joints = robot_model("diffbot").num_joints
        closed_ones = [d for d in (1, 2) if "os.close(%d)" % d in {closed!r}]
        for descriptor in closed_ones:
            try:
                os.fstat(descriptor)
            except OSError:
                continue
            joints = "descriptor %d is open" % descriptor
        with open({str(answer)!r}, "w") as file:
            file.write(str(joints))
        os._exit(0)
        """
    )
    assert done.returncode == 0, done.stderr
    assert answer.read_text() == "2"


def test_an_unreadable_urdf_names_the_path_and_prints_nothing(capfd, tmp_path):
    client = DirectClient()
    path = str(tmp_path / "none.urdf")
    with pytest.raises(ValueError, match=r"urdf path: expected a URDF file that PyBullet can load, got '.*none.urdf'"):
        client.load_urdf(path)
    client.close()
    assert capfd.readouterr() == ("", "")


def test_clients_find_the_stock_models_and_close_once():
    client = DirectClient()
    assert pybullet().isConnected(client.id)
    assert client.load_urdf("plane.urdf") == 0
    client.close()
    assert not pybullet().isConnected(client.id)
    other = DirectClient()  # PyBullet gives the number away again
    assert other.id == client.id
    client.close()
    assert pybullet().isConnected(other.id)
    other.close()
    assert os.path.isfile(os.path.join(pybullet_data_path(), "plane.urdf"))


def test_a_build_without_numpy_is_refused(monkeypatch):
    module = pybullet()
    monkeypatch.setattr(_pybullet, "_module", None)
    monkeypatch.setattr(module, "isNumpyEnabled", lambda: 0)
    with pytest.raises(ImportError, match="without NumPy"):
        pybullet()
