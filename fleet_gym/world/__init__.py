"""The world: state, scene, robot models, cameras, neighbours."""
