"""What Slurm's tools say, told by stand-ins for answers that a real Slurm gives only now and then."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.slurm.query import FRESH, MOST_SECONDS, CommandAnswer, SlurmSilent, query_jobs, query_named
from launcher.slurm.verdict import is_settled
from tests.launcher.conftest import Tools


def test_an_array_cancelled_before_it_started_is_one_record_for_all_its_elements(tools: Tools) -> None:
    tools(squeue="echo '6|CANCELLED|2026-11-21T06:12:31||sweep|'")
    assert {name: state.name for name, state in query_jobs(["6_0", "6_3"]).items()} == {
        "6_0": "CANCELLED",
        "6_3": "CANCELLED",
    }


def test_an_element_of_its_own_is_not_judged_by_the_rest_of_its_array(tools: Tools) -> None:
    tools(squeue="echo '6_0|RUNNING|N/A||sweep|'; echo '6_[1-2]|PENDING|N/A||sweep|'")
    assert {name: state.name for name, state in query_jobs(["6_0", "6_2"]).items()} == {
        "6_0": "RUNNING",
        "6_2": "PENDING",
    }


def test_an_element_that_was_cancelled_as_it_waited_leaves_no_record_but_its_array(tools: Tools) -> None:
    waiting = "echo '6_0|RUNNING|N/A|node1|sweep|'; echo '6_2|PENDING|N/A||sweep|'"
    tools(squeue=waiting, sacct="echo '6_[2]|PENDING|Unknown||sweep|'; echo '6_0|RUNNING|Unknown|node1|sweep|'")
    state = query_jobs(["6_0", "6_1", "6_2"])["6_1"]
    assert (state.name, state.names, is_settled(state)) == ("CANCELLED", frozenset({"sweep"}), True)
    tools(squeue=waiting, sacct="true")  # without accounting it may have ended long ago
    assert query_jobs(["6_0", "6_1", "6_2"]).keys() == {"6_0", "6_2"}


@pytest.mark.parametrize(
    ("ranges", "elements"),
    [
        ("0-6:3", [0, 3, 6]),
        ("1-2,5,8-10:2%4", [1, 2, 5, 8, 10]),
        ("2,5,11...", [2, 5]),
        ("2,5,...", [2, 5]),
        ("2,5-9...%1", [2]),
    ],
)
def test_elements_of_an_array_are_known_also_by_strides_and_where_their_list_was_cut_short(
    ranges: str, elements: list[int], tools: Tools
) -> None:
    tools(squeue="true", sacct=f"echo '6_[{ranges}]|CANCELLED by 1000|2026-11-21T06:12:31|None assigned|sweep|'")
    assert query_jobs(f"6_{n}" for n in range(13)).keys() == {f"6_{n}" for n in elements}


def test_a_job_is_unknown_only_when_both_tools_answered(tools: Tools) -> None:
    tools(squeue="true", sacct="true")
    assert query_jobs(["7"]) == {}
    tools(sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert query_jobs(["7"]) == {}


def test_a_job_that_lives_only_in_the_books_is_not_called_live(tools: Tools) -> None:
    tools(
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo '7|RUNNING|Unknown|node1|sweep|'; echo '8|COMPLETED|2026-11-21T06:12:31|node1|sweep|'",
    )
    told = {job_id: state.name for job_id, state in query_jobs(["7", "8"]).items()}
    assert told == {"7": "UNKNOWN HERE", "8": "COMPLETED"}


@pytest.mark.parametrize(
    "scripts",
    [
        {"squeue": "exit 1", "sacct": "true"},
        {"squeue": "true", "sacct": "echo 'slurmdbd: connection refused' >&2; exit 1"},
    ],
)
def test_a_tool_that_does_not_answer_proves_nothing(scripts: dict[str, str], tools: Tools) -> None:
    tools(**scripts)
    with pytest.raises(SlurmSilent):
        query_jobs(["7"])


def test_the_banner_of_a_wrapped_tool_is_passed_over(tools: Tools) -> None:
    tools(squeue="echo '2026 | maintenance on Sunday'; echo; echo 'site|v2'; echo '7|RUNNING|N/A||its | name|(null)|'")
    (state,) = query_jobs(["7"]).values()
    assert state.name == "RUNNING"
    assert state.names == {"its | name"}


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (("RUNNING", "RUNNING"), "RUNNING"),
        (("CANCELLED by 0", "NODE_FAIL"), "NODE_FAIL"),
        (("COMPLETED", "FAILED"), "FAILED"),
        (("FAILED", "COMPLETING"), "COMPLETING"),
        (("COMPLETED", "COMPLETED"), "COMPLETED"),
    ],
)
def test_a_heterogeneous_job_lives_while_a_component_does_and_ends_as_the_one_that_tells_most(
    states: tuple[str, str], told: str, tools: Tools
) -> None:
    tools(squeue=f"echo '7+0|{states[0]}|2026-11-21T06:12:31|n3|sweep|'; echo '7+1|{states[1]}|N/A|n[1-2]|sweep|'")
    ((job_id, state),) = query_jobs(["7"]).items()
    assert (job_id, state.name, state.nodes) == ("7", told, "n3,n[1-2]")
    assert (state.ended is None) == state.is_live


@pytest.mark.parametrize("torn", ["7_1|RUNNING|N/", "7_1|RUNNING|N/A||na", "7_", "7", "7+", "7+1|RUN"])
def test_an_answer_that_breaks_off_proves_nothing_about_what_it_lacks(torn: str, tools: Tools) -> None:
    tools(squeue=f"echo '7_0|RUNNING|N/A||name|'; printf '{torn}'", sacct="true")
    with pytest.raises(SlurmSilent):
        query_jobs(["7_0", "7_1"])


@pytest.mark.parametrize("hours", [-1, 1])
def test_when_a_job_ended_is_told_by_slurms_clock_whatever_this_machines_says(hours: int, tools: Tools) -> None:
    slurms_now = time.time() + 3600 * hours
    ended, now = (datetime.datetime.fromtimestamp(slurms_now - ago).isoformat("T", "seconds") for ago in (50, 0))
    tools(
        squeue=f"echo '7|COMPLETED|{ended}||name|'; echo '8|NODE_FAIL|{ended}||name|'",
        scontrol=f"echo 'Configuration data as of {now}'",
    )
    states = query_jobs(["7", "8"])
    assert [is_settled(states[job_id]) for job_id in ("7", "8")] == [True, False]


def test_jobs_are_found_by_their_name_and_by_that_of_their_script(tools: Tools) -> None:
    tools(
        squeue="""[ "$5" = "--user=$(/usr/bin/id -un)" ] && echo '7_[0-1]|PENDING|N/A||a-1|(null)|' &&
        printf "8|RUNNING None|N/A|n1|of the site|/logs/b-2.sh|\n9|RUNNING None|N/A|n1|two\nlines|/a/\nb-20.sh|\n" """
    )
    assert sorted(query_named(["b-2", "a-1"])) == ["7_0", "7_1", "8"]


def test_jobs_of_a_user_without_a_name_are_found_by_their_own(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(squeue="""[ "$5" = "--name=a-1,b-2" ] && echo '7|PENDING|N/A||a-1|(null)|'""")
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    assert sorted(query_named(["b-2", "a-1"])) == ["7"]


def test_accounting_without_the_line_of_a_submission_is_asked_for_the_rest(tools: Tools) -> None:
    refusal = "echo 'sacct: error: Invalid field requested: \"SubmitLine\"' >&2; exit 1"
    tools(squeue="true", sacct=f"case $* in *SubmitLine*) {refusal} ;; esac; echo '7|COMPLETED|Unknown|n1|ours|'")
    assert query_jobs(["7"])["7"].names == {"ours"}


def test_how_a_person_likes_squeue_to_show_jobs_changes_no_answer(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(
        squeue='[ "$SQUEUE_USERS$SQUEUE_PARTITION" ] || echo "7|COMPLETED|$SLURM_TIME_FORMAT||sweep|"',
        sacct='[ "$SLURM_BITSTR_LEN" = 0 ] && echo "8|$SLURM_CLUSTERS|N/A||sweep|"',
    )
    for name, value in {"SQUEUE_USERS": "me", "SLURM_TIME_FORMAT": "relative", "SLURM_CLUSTERS": "FAILED"}.items():
        monkeypatch.setenv(name, value)
    assert {job_id: state.name for job_id, state in query_jobs(["7", "8"]).items()} == {"7": "COMPLETED", "8": "FAILED"}


def test_thousands_of_jobs_are_asked_about_in_parts(tools: Tools) -> None:
    one_line = """for told in "$@"; do :; done; first=${told#*=}; echo "${first%%,*}|RUNNING|N/A||${first%%,*}|" """
    tools(squeue=one_line, sacct="true")
    assert len(query_jobs(map(str, range(100_000, 101_001)))) == 3


COUNTING = 'echo asked >> "$(dirname "$0")/asked"; '


@pytest.fixture
def num_asked(tmp_path: Path) -> Callable[[], int]:
    asked = tmp_path / "tools" / "asked"
    return lambda: len(asked.read_text().splitlines()) if asked.exists() else 0


def answer(*, exit_code: int = 0, took: float = 0.1, age: float = 0.0) -> CommandAnswer:
    import time

    return CommandAnswer(asked=time.time() - age, took=took, exit_code=exit_code, said="", complained="")


def test_those_who_look_again_and_again_share_an_answer_and_others_ask(
    tools: Tools, num_asked: Callable[[], int]
) -> None:
    tools(squeue=f"{COUNTING} echo '7|RUNNING|N/A|n1|name|'", sacct="true")
    for _ in range(3):
        assert query_jobs(["7"], 30.0)["7"].name == "RUNNING"
    assert num_asked() == 1
    assert query_jobs(["7"]) == query_jobs(["7"], FRESH)
    assert num_asked() == 3
    query_jobs(["8"], 30.0)
    assert num_asked() == 4, "another question"


def test_a_slurm_that_fails_is_left_in_peace_and_nothing_is_concluded(
    tools: Tools, num_asked: Callable[[], int]
) -> None:
    tools(squeue=f"{COUNTING} exit 1", sacct="true")
    for _ in range(3):
        with pytest.raises(SlurmSilent):
            query_jobs(["7"], 30.0)
    assert num_asked() == 1


def test_the_wait_is_longer_after_a_failure_and_a_slow_answer_and_a_minute_at_most() -> None:
    assert answer(age=4).is_good_for(5.0)
    assert not answer(age=6).is_good_for(5.0)
    assert answer(age=6, exit_code=1).is_good_for(5.0)
    assert not answer(age=11, exit_code=1).is_good_for(5.0)
    assert answer(age=30, took=4).is_good_for(5.0)
    assert not answer(age=MOST_SECONDS + 1, exit_code=1).is_good_for(50.0)
    assert not answer(age=-60).is_good_for(5.0), "the clock was set back"
    assert not answer().is_good_for(FRESH)
