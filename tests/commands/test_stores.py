import shutil

import pytest
from demo_kit import git

from sentinel.sources import MirrorStore, open_checkout
from sentinel.targets.refs import Ref


def test_mirror_add_from_a_directory_and_list(run_sentinel, tiny):
    answer = run_sentinel("mirror", "add", "tiny", "--from", tiny.upstream)
    assert answer.status == 0
    assert answer.out.startswith("tiny: 1 ref, ")
    assert "sentinel: copying" in answer.err
    assert "\x1b" not in answer.err  # no control sequences, because the output is not a terminal
    listed = run_sentinel("mirror", "list")
    assert listed.out.splitlines()[0].split() == ["target", "size", "refs", "updated", "from"]
    (row,) = run_sentinel("mirror", "list", "--json").json()
    assert (row["target"], row["refs"], row["whole"], row["origins"]) == ("tiny", 1, True, [str(tiny.upstream)])


def test_a_shallow_clone_causes_a_warning(run_sentinel, tiny, tmp_path):
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tiny.upstream}", "clone")
    answer = run_sentinel("mirror", "add", "tiny", "--from", tmp_path / "clone")
    assert answer.status == 0
    assert "tiny: the history is shallow, so older commits cannot be compared or swept; run" in answer.err
    assert f"`git -C {tmp_path / 'clone'} fetch --unshallow`, then add it again" in answer.err
    assert "shallow" not in run_sentinel("mirror", "add", "tiny", "--from", tiny.upstream).err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--from", "nowhere"], "no such file or directory"),
        (["--from=-x"], "begins with '-'"),
        (["--from", "https://example.org/a;b"], "a character that a shell interprets"),
    ],
)
def test_mirror_add_rejects_invalid_input(run_sentinel, arguments, reason):
    answer = run_sentinel("mirror", "add", "tiny", *arguments)
    assert answer.status == 2
    assert reason in answer.err
    assert run_sentinel("mirror", "list").out.startswith("no mirrors in ")


def test_mirror_remove_deletes_a_mirror(run_sentinel, mirrored, tmp_path):
    assert run_sentinel("mirror", "remove", "tiny").out.startswith("tiny: removed, ")
    assert [path.name for path in (tmp_path / "home" / "mirrors").iterdir()] == [".tiny.lock"]
    answer = run_sentinel("mirror", "remove", "tiny")
    assert (answer.status, answer.out) == (2, "")
    assert "no mirror of tiny in " in answer.err


def test_mirror_add_without_a_network_suggests_from(run_sentinel):
    answer = run_sentinel("mirror", "add", "tiny", "--repo-url", "file:///nowhere/at/all")
    assert answer.status == 2
    assert "copy a local clone instead, run `sentinel mirror add tiny --from DIR|TAR`" in answer.err


def test_mirror_update_fetches_new_commits(run_sentinel, tiny, mirrored):
    assert run_sentinel("mirror", "update").out.startswith("tiny: 1 ref")
    assert run_sentinel("mirror", "update", "tiny", "tiny").out.count("tiny: 1 ref") == 1


def test_mirror_update_continues_after_an_unreachable_remote(run_sentinel, tiny, mirrored, tmp_path):
    record = tmp_path / "home" / "mirrors" / "tiny.git" / "sentinel.json"
    record.write_text(record.read_text().replace(str(tiny.upstream), "/nowhere/at/all"))
    answer = run_sentinel("mirror", "update")
    assert answer.status == 2
    assert "sentinel: cannot update the mirror of tiny" in answer.err


def test_cache_lists_and_prunes_entries(run_sentinel, tiny, mirrored, catalog, tmp_path):
    assert run_sentinel("cache", "list").out.startswith("the cache in ")
    checkout = open_checkout(catalog.targets["tiny"], Ref("git", tiny.fixed), store=MirrorStore())
    wheel = tmp_path / "home" / "wheels" / "tiny-dist" / "tiny_dist-1.2.3-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"a wheel")
    found = {row["kind"]: row for row in run_sentinel("cache", "list", "--json").json()}
    assert found["checkout"]["name"] == checkout.tree
    assert found["wheel"]["size"] == 7
    assert "2 items, " in run_sentinel("cache", "list").out
    assert run_sentinel("cache", "prune").out == "0 items removed, 0 B freed\n"
    # This process uses both entries, so they are not pruned.
    assert all(row["in_use"] for row in found.values())
    assert run_sentinel("cache", "prune", "--all").out == "0 items removed, 0 B freed\n"


def test_a_mirror_of_another_project_is_rejected(run_sentinel, tiny, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny.upstream, other)
    for command in (["checkout", "-q", "--orphan", "another"], ["mv", "tiny", "large"], ["commit", "-qm", "another"]):
        git(other, *command)
    # A mirror belongs to the target if any branch ever had the package.
    assert run_sentinel("mirror", "add", "tiny", "--from", other).status == 0
    assert run_sentinel("mirror", "remove", "tiny").out.startswith("tiny: removed, ")
    git(other, "branch", "-qD", "main")
    answer = run_sentinel("mirror", "add", "tiny", "--from", other)
    assert answer.status == 2
    said = f"{other} is not tiny: no commit has any of its packages (tiny); name a copy of file://{tiny.upstream}"
    assert said in answer.err
    assert run_sentinel("mirror", "list").out.startswith("no mirrors in ")
