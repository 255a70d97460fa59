"""Dynamics: how commands move robots."""
