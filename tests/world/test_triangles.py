import pickle

import numpy as np
import pytest

from fleet_gym.world.scene import BodySpec, Shape
from fleet_gym.world.triangles import MAX_VERTICES, Triangles

CORNERS = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2]]
FACES = [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]


def test_equal_triangles_are_equal_also_after_a_journey():
    triangles = Triangles(CORNERS, FACES)
    other = pickle.loads(pickle.dumps(triangles))
    assert other == triangles
    assert hash(other) == hash(triangles)
    assert Triangles(CORNERS, FACES[1:]) != triangles
    with pytest.raises(ValueError, match="read-only"):
        triangles.vertices[0, 0] = 5.0


def test_what_is_given_may_change_later():
    corners = np.array(CORNERS, dtype=np.float64)
    triangles = Triangles(corners, FACES)
    corners[:] = 7.0
    assert triangles.vertices[1, 0] == 1.0


@pytest.mark.parametrize(
    ("vertices", "indices", "error", "message"),
    [
        ([[0, 0, np.nan], *CORNERS], FACES, ValueError, "vertices: expected finite .* row 0"),
        ([["a", "b", "c"]], FACES, TypeError, "vertices: expected real numbers"),
        ([[0, 0], [1]], FACES, ValueError, "vertices: expected a rectangular array"),
        (np.zeros((4, 2)), FACES, ValueError, r"vertices: expected shape \(n, 3\)"),
        (np.zeros((0, 3)), FACES, ValueError, "vertices"),
        (np.zeros((MAX_VERTICES + 1, 3)), FACES, ValueError, "131072"),
        (CORNERS, [[0, 1, 4]], ValueError, r"indices: expected 0\.\.3, got 0\.\.4"),
        (CORNERS, [[0, 1, -1]], ValueError, "indices"),
        (CORNERS, [[0.0, 1.0, 2.0]], TypeError, "indices: expected integers"),
        (CORNERS, [0, 1, 2], ValueError, "indices: expected shape"),
        (CORNERS, [[0, 0, 1], [2, 2, 2]], ValueError, "a triangle with an area|one triangle"),
    ],
)
def test_bad_arrays_are_refused(vertices, indices, error, message):
    with pytest.raises(error, match=message):
        Shape.from_arrays(vertices, indices)


@pytest.mark.parametrize(
    ("heights", "cell", "message"),
    [
        (np.zeros((1, 5)), (1, 1), "2 x 2"),
        (np.zeros(5), (1, 1), "2 x 2"),
        (np.full((3, 3), np.inf), (1, 1), "finite"),
        (np.zeros((3, 3)), (0.0, 1.0), "cell"),
        (np.zeros((3, 3)), (1.0,), "cell"),
    ],
)
def test_bad_heights_are_refused(heights, cell, message):
    with pytest.raises(ValueError, match=message):
        Shape.from_heights(heights, cell)


def test_terrain_lies_where_its_heights_say():
    heights = np.arange(12.0).reshape(3, 4)  # rows along y
    shape = Shape.from_heights(heights, (0.5, 2.0))
    corners = {tuple(row) for row in shape.triangles.vertices.tolist()}
    assert (-0.75, -2.0, 0.0) in corners
    assert (0.75, -2.0, 3.0) in corners
    assert (-0.75, 2.0, 8.0) in corners
    assert shape.size == (1.5, 4.0, 22.0)
    a, b, c = (shape.triangles.vertices[shape.triangles.indices[:, k]] for k in range(3))
    assert (np.cross(b - a, c - a)[:, 2] > 0).all()  # seen from above


def test_shapes_and_triangles_belong_together():
    with pytest.raises(ValueError, match="triangles"):
        Shape("mesh", (1, 1, 1))
    with pytest.raises(ValueError, match="triangles"):
        Shape("box", (1, 1, 1), Triangles(CORNERS, FACES))
    assert Shape.from_arrays(CORNERS, FACES).bounding_radius == 1.0
    with pytest.raises(ValueError, match="'ground'"):
        BodySpec("a", "floor", Shape("box", (1, 1, 1)))
