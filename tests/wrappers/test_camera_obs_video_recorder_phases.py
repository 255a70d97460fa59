import numpy as np

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.testing.frame_counting_writer import FrameCountingWriter
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder
from fleet_gym.wrappers.time_profiling import TimeProfilingWrapper


def test_recording_is_a_phase_of_its_own(tmp_path):
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([9]), tmp_path, writer_factory=FrameCountingWriter)
    env = TimeProfilingWrapper(recorder, profiling_interval=2)
    env.reset()
    for _ in range(3):
        env.step(np.zeros((1, 1)))
    assert env.last_profiling["phases_ms"]["record"] > 0
    env.close()
