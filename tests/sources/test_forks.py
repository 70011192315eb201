import pytest

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.sources.urls import base_name, fork
from sentinel.targets import PackageRoot, Target
from sentinel.targets.refs import Ref

UPSTREAM = Target("tiny", "https://host.invalid/up/tiny", (PackageRoot("tiny"),))


def test_a_fork_has_its_own_mirror():
    other = fork(UPSTREAM, "https://host.invalid/me/tiny")
    assert other.repository == "https://host.invalid/me/tiny"
    assert other.name != UPSTREAM.name
    assert base_name(other.name) == UPSTREAM.name
    assert fork(UPSTREAM, "https://host.invalid/you/tiny").name != other.name


def test_upstreams_url_is_not_a_fork():
    assert fork(UPSTREAM, None) is UPSTREAM
    assert fork(UPSTREAM, UPSTREAM.repository) is UPSTREAM


@pytest.mark.parametrize("url", ["--upload-pack=touch x", "ext::sh -c id", "https://host.invalid/a;id", "not a url"])
def test_dangerous_urls_are_rejected(url):
    with pytest.raises(SentinelError, match="not a repository URL"):
        fork(UPSTREAM, url)


def test_a_fork_without_a_mirror_names_the_command(tmp_path):
    store = MirrorStore(Home(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match=r"run `sentinel mirror add tiny --repo-url https://host\.invalid/me/tiny`"):
        open_checkout(UPSTREAM, Ref("git", "main"), store=store, url="https://host.invalid/me/tiny")
