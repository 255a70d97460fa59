"""Wrappers for any Gymnasium vector environment: the camera recorder, the profilers, and robots as environments."""
