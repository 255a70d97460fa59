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
        (np.array(CORNERS) * 1e39, FACES, ValueError, r"vertices: expected m within \+-1e\+06, got 0\.0\.\.2e\+39"),
        (np.array(CORNERS) * 1e-30, FACES, ValueError, "one triangle with an area"),
        (np.array(CORNERS) * 1e-6 + 1e5, FACES, ValueError, "one triangle with an area"),
    ],
)
def test_bad_arrays_are_refused(vertices, indices, error, message):
    with pytest.raises(error, match=message):
        Shape.from_arrays(vertices, indices)


@pytest.mark.parametrize(
    ("heights", "cell", "error", "message"),
    [
        (np.zeros((1, 5)), (1, 1), ValueError, "2 x 2"),
        (np.zeros(5), (1, 1), ValueError, "2 x 2"),
        (np.full((3, 3), np.inf), (1, 1), ValueError, "finite"),
        (np.zeros((3, 3)), (0.0, 1.0), ValueError, r"cell\[0\]: expected a finite number > 0, got 0.0"),
        (np.zeros((3, 3)), (1.0,), ValueError, "cell: expected 2 numbers"),
        (np.zeros((3, 3)), 1.0, TypeError, "cell: expected 2 numbers, got 1.0"),
        (np.zeros((3, 3)), None, TypeError, "cell: expected 2 numbers, got None"),
        (np.zeros((3, 3)), (1.0, "a"), TypeError, r"cell\[1\]: expected a finite number > 0, got 'a'"),
        (np.zeros((3, 3)), (True, 1.0), TypeError, r"cell\[0\]: .*got True"),
    ],
)
def test_bad_heights_are_refused(heights, cell, error, message):
    with pytest.raises(error, match=message):
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


@pytest.mark.parametrize("size", [1.0, None, "abc", (1.0, 1.0, "a"), (True, 1.0, 1.0), ([1.0], 1.0, 1.0)])
def test_sizes_of_the_wrong_type_name_the_argument(size):
    with pytest.raises(TypeError, match="shape size"):
        Shape("box", size)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"name": 3}, TypeError, "body name: expected a str, got 3"),
        ({"shape": "box"}, TypeError, "body shape: expected a Shape, got 'box'"),
        ({"shape": None}, TypeError, "body shape"),
        ({"color": (1, 0, 0)}, ValueError, "color of body 'n': expected 4 numbers"),
        ({"color": "red"}, TypeError, "color of body 'n': expected 4 numbers, got 'red'"),
        ({"color": (1, 0, 0, np.nan)}, ValueError, r"color of body 'n'\[3\]"),
        ({"color": (255, 0, 0, 1)}, ValueError, r"color of body 'n'\[0\]: .*<= 1, got 255"),
        ({"mass": 0.0}, ValueError, "mass of body 'n': expected a finite number > 0, got 0.0"),
        ({"mass": -1.0}, ValueError, "mass of body 'n'"),
        ({"mass": np.nan}, ValueError, "mass of body 'n'"),
        ({"mass": None}, TypeError, "mass of body 'n'"),
    ],
)
def test_bodies_that_no_renderer_or_physics_would_take_are_refused(wrong, error, message):
    values = {"name": "n", "kind": "free", "shape": Shape("box", (1, 1, 1))} | wrong
    with pytest.raises(error, match=message):
        BodySpec(**values)


def test_arrays_and_lists_become_tuples_so_that_bodies_compare_and_hash():
    body = BodySpec("n", "obstacle", Shape("box", np.ones(3)), [1, 0, 0, np.float32(1.0)], mass=0)
    assert body == BodySpec("n", "obstacle", Shape("box", (1, 1, 1)), (1, 0, 0, 1), mass=0)
    assert len({body, body}) == 1
    with pytest.raises(TypeError, match="shape triangles: expected Triangles or None, got 3"):
        Shape("mesh", (1, 1, 1), 3)
