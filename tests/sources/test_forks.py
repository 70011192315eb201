import pytest

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.sources.urls import base_name, fork
from sentinel.targets import PackageRoot, Target
from sentinel.targets.refs import Ref

UPSTREAM = Target("tiny", "https://host.invalid/up/tiny", (PackageRoot("tiny"),))


def test_a_fork_has_another_mirror_and_another_repository():
    other = fork(UPSTREAM, "https://host.invalid/me/tiny")
    assert other.repository == "https://host.invalid/me/tiny"
    assert other.name != UPSTREAM.name
    assert base_name(other.name) == UPSTREAM.name
    assert fork(UPSTREAM, "https://host.invalid/you/tiny").name != other.name


def test_upstream_is_no_fork_of_itself():
    assert fork(UPSTREAM, None) is UPSTREAM
    assert fork(UPSTREAM, UPSTREAM.repository) is UPSTREAM


@pytest.mark.parametrize("url", ["--upload-pack=touch x", "ext::sh -c id", "https://host.invalid/a;id", "not a url"])
def test_what_git_must_not_be_given_is_refused(url):
    with pytest.raises(SentinelError, match="not a repository URL"):
        fork(UPSTREAM, url)


def test_without_its_mirror_the_reason_names_the_command(tmp_path):
    store = MirrorStore(Home(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match=r"run `sentinel mirror add tiny --repo-url https://host\.invalid/me/tiny`"):
        open_checkout(UPSTREAM, Ref("git", "main"), store=store, url="https://host.invalid/me/tiny")
