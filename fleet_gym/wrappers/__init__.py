"""Wrappers for any Gymnasium vector environment: the camera recorder and the profilers."""
