"""Engine: dynamics and renderer over a block of worlds."""
