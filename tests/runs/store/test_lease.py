"""Whether the process that holds a lease is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.runs.protocols import Lease
from ferrule.runs.store import lease as lease_owner
from ferrule.runs.store.lease import Leases, is_dead, owner_name


def test_this_process_is_alive_and_one_elsewhere_is_not_known_to_be_dead() -> None:
    assert not is_dead(owner_name())
    assert not is_dead("elsewhere pid 1")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_process_that_ended_is_dead_also_while_its_parent_has_not_asked_for_it() -> None:
    """A zombie holds no run."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    owner = f"{lease_owner._pid_scope()} pid {child.pid}"
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    assert is_dead(owner)
    child.wait()
    assert is_dead(owner)


@pytest.mark.parametrize(
    ("stat", "is_over"),
    [
        pytest.param(
            "7 (a b) Z) R 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0",
            False,
            id="alive, with a name like that",
        ),
        pytest.param("7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0", True, id="zombie"),
        pytest.param("7 (x) X 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 0 0", True, id="dead"),
        pytest.param(
            "7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0",
            False,
            id="first thread ended, others work",
        ),
    ],
)
def test_the_state_is_read_behind_the_name(
    monkeypatch: pytest.MonkeyPatch,
    stat: str,
    is_over: bool,
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: stat)
    assert lease_owner._is_zombie("7") is is_over


def test_a_lease_whose_object_is_gone_is_to_be_given_back_once() -> None:
    leases, lease, other = Leases(), Lease("r", 1), Lease("s", 1)
    leases.hold(lease, lambda: 0.0, 30.0)
    leases.hold(other, lambda: 0.0, 30.0)
    assert leases.left() == []
    del lease
    assert leases.left() == [("r", 1)]
    assert leases.left() == []
    assert leases.knows("r", 1) is False
    assert leases.held() == [("s", 1, 30.0)]
    del other
