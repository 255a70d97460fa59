"""Rendering: from state to images."""
