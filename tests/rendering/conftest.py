import pytest


@pytest.fixture(scope="session", autouse=True)
def mesh_cache(tmp_path_factory):
    """A cache of simplified meshes of this test run only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEET_GYM_CACHE_DIR", str(tmp_path_factory.mktemp("meshes")))
        yield
