import math
import os

import numpy as np
import pytest

from fleet_gym._pybullet import pybullet, pybullet_data_path
from fleet_gym.world.forward_kinematics import load_tree
from fleet_gym.world.robots import known_robots, robot_model
from fleet_gym.world.urdf import HULL_MARGIN, inspect_urdf

INERTIAL = (
    '<inertial><origin xyz="0.1 -0.2 0.3" rpy="0.1 0.2 0.3"/><mass value="1"/>'
    '<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.2" iyz="0" izz="0.3"/></inertial>'
)


def stock(path):
    return os.path.join(pybullet_data_path(), path)


def shape(geometry, xyz="0 0 0", rpy="0 0 0", attributes=""):
    return f'<collision{attributes}><origin xyz="{xyz}" rpy="{rpy}"/><geometry>{geometry}</geometry></collision>'


def link(name, *shapes):
    return f'<link name="{name}">{INERTIAL}{"".join(shapes)}</link>'


def joint(name, kind, parent, child, xyz="0 0 0", axis="0 0 1", limit=""):
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{xyz}"/><axis xyz="{axis}"/>{limit}</joint>'
    )


@pytest.fixture
def inspect(tmp_path):
    def write_and_inspect(*parts):
        path = tmp_path / "robot.urdf"
        path.write_text(f'<robot name="r">{"".join(parts)}</robot>')
        return inspect_urdf(path)

    return write_and_inspect


@pytest.mark.parametrize(
    ("geometry", "radius", "lowest", "highest"),
    [
        ('<box size="2 1 0.5"/>', math.hypot(1.3, 0.5), -0.25, 0.25),
        ('<sphere radius="0.5"/>', 0.8, -0.5, 0.5),
        ('<capsule radius="0.2" length="1"/>', 0.5, -0.7, 0.7),
        ('<cylinder radius="0.5" length="1"/>', 0.8 + HULL_MARGIN, -0.5 - HULL_MARGIN, 0.5 + HULL_MARGIN),
    ],
)
def test_extent_of_a_primitive_is_its_own_whatever_the_inertial_frame(inspect, geometry, radius, lowest, highest):
    measured = inspect(link("base", shape(geometry, xyz="0.3 0 1")))
    assert measured.footprint_radius == pytest.approx(radius, abs=1e-6)
    assert measured.lowest == pytest.approx(1 + lowest, abs=1e-6)
    assert measured.highest == pytest.approx(1 + highest, abs=1e-6)
    assert measured.reach >= math.hypot(radius, 1 + highest) - 0.3


def test_lying_shapes_are_turned(inspect):
    quarter = f"{math.pi / 2} 0 0"
    measured = inspect(link("base", shape('<capsule radius="0.2" length="1"/>', rpy=quarter)))
    assert measured.footprint_radius == pytest.approx(0.7, abs=1e-6)
    assert measured.lowest == pytest.approx(-0.2, abs=1e-6)
    # A cylinder is a prism of 32 sides in PyBullet: it rolls on a corner or on an edge.
    measured = inspect(link("base", shape('<cylinder radius="0.5" length="0.2"/>', rpy=quarter)))
    assert -0.5 - HULL_MARGIN - 1e-6 <= measured.lowest <= -0.5 * math.cos(math.pi / 32) - HULL_MARGIN


def test_all_shapes_of_a_link_count(inspect):
    measured = inspect(
        link(
            "base",
            shape('<cylinder radius="0.1" length="0.2"/>', xyz="1 0 0"),
            shape('<cylinder radius="0.2" length="0.4"/>', xyz="-1 0 0"),
            shape('<box size="1 1 1"/>', xyz="0 0.2 2"),
            shape('<sphere radius="0.3"/>', xyz="0 0 -1"),
        )
    )
    assert measured.footprint_radius == pytest.approx(1.2 + HULL_MARGIN, abs=1e-6)
    assert (measured.lowest, measured.highest) == pytest.approx((-1.3, 2.5), abs=1e-6)


def test_links_are_placed_by_their_joints(inspect):
    measured = inspect(
        link("base", shape('<box size="0.2 0.2 0.2"/>')),
        link("arm", shape('<box size="0.2 0.2 0.2"/>', xyz="0 0 0.5")),
        link("tip", shape('<sphere radius="0.1"/>')),
        joint("shoulder", "revolute", "base", "arm", xyz="0.5 0 0.1", limit='<limit lower="-1" upper="2" effort="7"/>'),
        joint("slide", "prismatic", "arm", "tip", xyz="0 1 0", limit='<limit lower="0" upper="0.4" effort="9"/>'),
    )
    shoulder, slide = measured.joints
    assert (shoulder.name, shoulder.link_name, shoulder.parent) == ("shoulder", "arm", -1)
    assert (slide.name, slide.link_name, slide.parent) == ("slide", "tip", 0)
    assert (shoulder.lower, shoulder.upper, shoulder.effort) == (-1.0, 2.0, 7.0)
    np.testing.assert_allclose(slide.origin, (0.5, 1.0, 0.1), atol=1e-6)
    assert measured.root_link == "base"
    assert measured.movable == (0, 1)
    assert measured.footprint_radius == pytest.approx(math.hypot(0.5, 1.0) + 0.1, abs=1e-6)
    assert measured.highest == pytest.approx(0.7, abs=1e-6)
    # However the arm turns: base to shoulder, shoulder to slide, its travel, and the sphere.
    assert measured.reach == pytest.approx(math.hypot(0.5, 0.1) + 1.0 + 0.4 + 0.1, abs=1e-6)


def test_a_slide_without_limits_reaches_anywhere(inspect):
    measured = inspect(
        link("base", shape('<sphere radius="0.1"/>')),
        link("tip", shape('<sphere radius="0.1"/>')),
        joint("slide", "prismatic", "base", "tip", limit='<limit lower="1" upper="-1" effort="1"/>'),
    )
    assert measured.reach == math.inf


def test_rolling_joints_are_those_with_something_on_the_ground(inspect):
    measured = inspect(
        link("base", shape('<box size="0.5 0.3 0.1"/>', xyz="0 0 0.2")),
        link("wheel", shape('<sphere radius="0.1"/>')),
        link("fork"),
        link("caster", shape('<cylinder radius="0.05" length="0.02"/>', rpy="1.5708 0 0")),
        link("head", shape('<sphere radius="0.1"/>')),
        link("skid", shape('<sphere radius="0.1"/>')),
        joint("wheel_joint", "continuous", "base", "wheel", xyz="0 0 0.1", axis="0 1 0"),
        joint("swivel", "continuous", "base", "fork", xyz="-0.2 0 0.1"),
        joint("caster_joint", "continuous", "fork", "caster", xyz="-0.02 0 -0.05", axis="0 1 0"),
        joint("neck", "continuous", "base", "head", xyz="0 0 0.4"),
        joint("leg", "revolute", "base", "skid", xyz="0 0.2 0.1", limit='<limit lower="0" upper="1" effort="1"/>'),
    )
    assert {j.name: j.rolls for j in measured.joints} == {
        "wheel_joint": True,
        "swivel": True,
        "caster_joint": True,
        "neck": False,
        "leg": False,
    }
    margins = {j.name: j.margin for j in measured.joints}
    assert margins["wheel_joint"] == 0.0
    assert margins["caster_joint"] == HULL_MARGIN
    index = {j.name: i for i, j in enumerate(measured.joints)}
    assert measured.hangs_from(index["caster_joint"], [index["swivel"]])
    assert measured.hangs_from(index["swivel"], [index["swivel"]])
    assert not measured.hangs_from(index["wheel_joint"], [index["swivel"]])


@pytest.mark.parametrize(("lower", "upper", "rest"), [(-1, 1, 0), (0.4, 1, 0.4), (-2, -0.5, -0.5)])
def test_rest_position_is_the_nearest_to_zero(inspect, lower, upper, rest):
    limit = f'<limit lower="{lower}" upper="{upper}" effort="1"/>'
    measured = inspect(
        link("base", shape('<sphere radius="1"/>')), link("tip"), joint("j", "revolute", "base", "tip", limit=limit)
    )
    assert measured.joints[0].rest_position == rest


@pytest.mark.parametrize("attributes", ["", ' concave="yes"'])
def test_meshes_convex_and_concave_alone_and_beside_other_shapes(inspect, attributes):
    mesh = f'<mesh filename="{stock("cube.obj")}" scale="2 1 1"/>'
    alone = inspect(link("base", shape(mesh, xyz="1 0 0", attributes=attributes)))
    assert alone.footprint_radius == pytest.approx(math.hypot(2.0, 0.5) + HULL_MARGIN, abs=1e-5)
    assert (alone.lowest, alone.highest) == pytest.approx((-0.5 - HULL_MARGIN, 0.5 + HULL_MARGIN), abs=1e-5)
    beside = inspect(
        link(
            "base",
            shape('<cylinder radius="0.1" length="0.1"/>', xyz="0 0 3"),
            shape(mesh, xyz="1 0 0", attributes=attributes),
            shape('<box size="1 1 1"/>', xyz="0 0 -2"),
        )
    )
    assert beside.footprint_radius == pytest.approx(alone.footprint_radius, abs=1e-5)
    assert (beside.lowest, beside.highest) == pytest.approx((-2.5, 3.05 + HULL_MARGIN), abs=1e-5)


def test_a_changed_file_is_measured_again(tmp_path):
    path = tmp_path / "growing.urdf"
    for count, radius in enumerate((0.1, 0.2)):
        path.write_text(
            f'<robot name="r">{link("base", shape(f"<sphere radius={chr(34)}{radius}{chr(34)}/>"))}</robot>'
        )
        os.utime(path, ns=(count, count))
        assert inspect_urdf(path).footprint_radius == pytest.approx(radius)
        assert inspect_urdf(path) is inspect_urdf(str(path))


def test_files_that_are_no_urdf_are_refused(tmp_path):
    p = pybullet()
    open_before = [p.isConnected(client) for client in range(64)]
    missing = tmp_path / "missing.urdf"
    with pytest.raises(ValueError, match=r"urdf path: expected an existing file, got '.*missing.urdf'"):
        inspect_urdf(missing)
    broken = tmp_path / "broken.urdf"
    broken.write_text("<robot><link")
    with pytest.raises(ValueError, match=r"expected a readable URDF file, got '.*broken.urdf'"):
        inspect_urdf(broken)
    assert [p.isConnected(client) for client in range(64)] == open_before


def test_shapes_without_an_extent_are_refused(inspect):
    with pytest.raises(ValueError, match=r"expected collision shapes that are boxes.*geometry type"):
        inspect(link("base", shape('<plane normal="0 0 1"/>')))


@pytest.mark.parametrize("name", known_robots())
def test_joints_are_numbered_as_forward_kinematics_numbers_them(name):
    model = robot_model(name)
    measured, tree = inspect_urdf(model.urdf), load_tree(model.urdf)
    assert tuple(j.name for j in measured.joints) == tree.joint_names[1:]
    assert tuple(j.link_name for j in measured.joints) == tree.link_names[1:]
    assert len(measured.movable) == tree.num_joints
    assert np.array_equal([j.parent + 1 for j in measured.joints], tree.parents[1:])


LINK = "<link name='{}'><collision><geometry><box size='1 1 1'/></geometry></collision></link>"
JOINT = "<joint name='{0}{1}' type='fixed'><parent link='{0}'/><child link='{1}'/></joint>"


@pytest.mark.parametrize(
    ("links", "joints", "message"),
    [
        ("ab", [], "one root link"),
        ("abc", ["ab", "ac", "bc"], "tree of links"),
        ("abc", ["bc", "cb"], "below the root"),
    ],
)
def test_what_is_no_tree_of_links_is_refused_before_pybullet_reads_it(tmp_path, links, joints, message):
    """PyBullet ends the process on these."""
    path = tmp_path / "odd.urdf"
    body = "".join(LINK.format(link) for link in links) + "".join(JOINT.format(*joint) for joint in joints)
    path.write_text(f"<robot name='odd'>{body}</robot>")
    with pytest.raises(ValueError, match=message):
        inspect_urdf(str(path))


def test_an_empty_file_is_refused_without_a_word_on_the_terminal(tmp_path, capfd):
    path = tmp_path / "empty.urdf"
    path.write_text("")
    with pytest.raises(ValueError, match="urdf"):
        inspect_urdf(str(path))
    assert capfd.readouterr() == ("", "")
