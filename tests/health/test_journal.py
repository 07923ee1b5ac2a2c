"""The journal survives killed processes, damaged lines and full disks."""

import json
import os
import shutil
import signal
import time

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import Journal, read_events, read_findings
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.untrusted import read_bytes
from tests import forked


def event(number=1, kind="new", rows=("a",), over=None):
    symptom = Symptom("a", tensor="grad", step=3, measured=20.0, threshold=10.0, text="t")
    found = Finding(
        "R",
        rows=rows,
        tensor="grad",
        first_step=3,
        last_step=9,
        severity=Severity.WARNING,
        evidence=(symptom,),
        message="m",
        is_over=over,
        number=number,
    )
    return Event(kind, 9, found)


def cause(kind="cause", name="Hot"):
    return Event(kind, 9, cause=Cause(name, "m", ("R/a",)))


def test_findings_and_causes_stand_as_after_the_last_event(tmp_path):
    journal = Journal(tmp_path / "run")
    journal.write([event(1), event(2), cause(), cause(name="Cold")])
    journal.write([event(1, "grown", ("a", "b")), event(2, "over", over=7), cause("withdrawn", "Cold")])
    journal.write_summary({"line": "Not healthy."})
    journal.close()
    run = read_findings(tmp_path / "run")
    assert [(finding.rows, finding.is_over) for finding in run.findings] == [(("a", "b"), None), (("a",), 7)]
    assert [cause.name for cause in run.causes] == ["Hot"] and len(run.events) == 7
    assert run.summary == {"line": "Not healthy."} and read_events(tmp_path / "run" / "findings.jsonl") == run.events


def test_a_run_without_findings_has_no_journal(tmp_path):
    Journal(tmp_path / "run").close()
    assert not (tmp_path / "run").exists()
    with pytest.raises(FileNotFoundError):
        read_findings(tmp_path / "run")


def test_two_fits_that_write_into_one_folder_at_once_each_have_a_journal_and_a_summary(tmp_path):
    first, second = Journal(tmp_path), Journal(tmp_path)
    first.write([Event("begin", 0), event(1)])
    says = r"^another fit writes into .*findings.jsonl now, so the findings of this one are in findings-2.jsonl, which "
    with pytest.warns(UserWarning, match=says):
        second.write([Event("begin", 0), event(7)])
    for journal, number in ((first, 2), (second, 8)):
        journal.write([event(number), Event("end", 9)])
        journal.write_summary({"line": str(number)})
        journal.close()
    for name, numbers, line in (("findings.jsonl", [1, 2], "2"), ("findings-2.jsonl", [7, 8], "8")):
        run = read_findings(tmp_path / name)
        assert [each.number for each in run.findings] == numbers and run.has_ended
        assert run.summary == {"line": line}
    third = Journal(tmp_path)
    third.write([Event("begin", 0, time=time.time() + 60)])
    third.close()
    known = read_findings(tmp_path)
    assert (known.fit, known.fits) == (3, 3) and len(read_events(tmp_path)) == 5, "a later fit goes on in the first file"


def write_fit(folder, number, began, *, ends=True):
    """A fit that began at a time, wrote one finding, and ended."""
    journal = Journal(folder)
    journal.write([Event("begin", 0, time=began), event(number)])
    if ends:
        journal.write_summary({"line": str(number)})
        journal.write([Event("end", 9)])
    return journal


def shown(folder, fit=None):
    known = read_findings(folder, fit)
    return known.fit, [each.number for each in known.findings], known.summary


def test_the_newest_fit_of_a_folder_counts_and_each_can_be_read_by_its_number(tmp_path):
    write_fit(tmp_path, 1, 100.0).close()
    second = write_fit(tmp_path, 2, 200.0)
    with pytest.warns(UserWarning, match="another fit writes into"):
        write_fit(tmp_path, 3, 300.0).close()
    second.close()
    assert shown(tmp_path) == shown(tmp_path, 3) == (3, [3], {"line": "3"})
    assert shown(tmp_path, 2) == (2, [2], {"line": "2"})
    assert shown(tmp_path, 1) == (1, [1], None), "the second fit has overwritten the summary of the first"
    assert shown(tmp_path / "findings.jsonl") == (2, [2], {"line": "2"})
    assert read_findings(tmp_path, 1).has_ended
    for fit in (0, 4):
        with pytest.raises(RuleError, match=f"^fit must be from 1 to 3, the number of fits in .*, got {fit}"):
            read_findings(tmp_path, fit)
    fourth = write_fit(tmp_path, 4, 400.0, ends=False)
    assert shown(tmp_path) == (4, [4], None) and not read_findings(tmp_path).has_ended
    fourth.close()


def test_fits_of_an_earlier_version_are_ordered_by_the_times_of_their_files(tmp_path):
    first = write_fit(tmp_path, 1, None)
    with pytest.warns(UserWarning, match="another fit writes into"):
        write_fit(tmp_path, 2, None).close()
    first.close()
    for newest, oldest in (("findings.jsonl", "findings-2.jsonl"), ("findings-2.jsonl", "findings.jsonl")):
        os.utime(tmp_path / oldest, (100, 100))
        os.utime(tmp_path / newest, (200, 200))
        assert shown(tmp_path) == (2, *shown(tmp_path / newest)[1:])


def test_fits_of_one_file_keep_their_order_although_the_clock_was_set_back(tmp_path):
    for number, began in ((1, 300.0), (2, 200.0)):
        write_fit(tmp_path, number, began).close()
    assert shown(tmp_path)[:2] == (2, [2]) and shown(tmp_path, 1)[:2] == (1, [1])


def test_a_damaged_time_is_a_damaged_line(tmp_path):
    (tmp_path / "findings.jsonl").write_text('{"event": "begin", "step": 0, "time": "noon"}')
    with pytest.warns(UserWarning, match=r"line 1 is ignored: event.time must be a number, .*got 'noon'"):
        assert not read_events(tmp_path)


def test_events_survive_a_killed_process(tmp_path):
    code = f"""
import os, signal
from lightning_hooks.health.journal import Journal
from tests.health.test_journal import event
Journal({str(tmp_path)!r}).write([event(), event(2)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert forked.run(["-c", code]).returncode == -signal.SIGKILL
    assert [each.finding.number for each in read_events(tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    "damage", ['{"event": "new", "st', "[1]", '{"event": "new", "step": 1, "finding": {}}', "\xff", "[" * 10**5]
)
def test_a_damaged_last_line_is_ignored_with_a_warning_and_does_not_spoil_the_next(tmp_path, damage):
    path = tmp_path / "findings.jsonl"
    path.write_bytes(json.dumps(event(1).to_dict()).encode() + b"\n" + damage.encode("latin-1"))
    with pytest.warns(UserWarning, match="findings.jsonl: line 2 is ignored: "):
        assert len(read_events(tmp_path)) == 1
    journal = Journal(tmp_path)
    journal.write([event(2)])
    journal.close()
    with pytest.warns(UserWarning, match="line 2 is ignored"):
        assert [each.finding.number for each in read_events(tmp_path)] == [1, 2]


def test_a_damaged_summary_is_ignored_with_a_warning(tmp_path):
    journal = Journal(tmp_path)
    journal.write([event()])
    journal.close()
    (tmp_path / "summary.json").write_text("{")
    with pytest.warns(UserWarning, match="summary.json is ignored"):
        assert read_findings(tmp_path).summary is None


def test_a_fit_that_ends_while_it_is_read_has_its_own_summary(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.write([Event("begin", 0)])
    journal.write_summary({"line": "earlier"})
    journal.write([Event("end", 9), Event("begin", 0)])
    has_ended = []

    def read_and_end(path, most):
        content = read_bytes(path, most)
        if not has_ended:
            has_ended.append(True)
            journal.write_summary({"line": "own"})
            journal.write([Event("end", 9)])
        return content

    monkeypatch.setattr("lightning_hooks.health.journal.read_bytes", read_and_end)
    assert read_findings(tmp_path).summary is None
    assert read_findings(tmp_path).summary == {"line": "own"}
    journal.close()


class FullDisk:
    """A file that takes a part of a line and then nothing until there is space again."""

    def __init__(self, file, space):
        self.file, self.space = file, space

    def write(self, line):
        written = self.file.write(line[: self.space]) if self.space else 0
        if not written:
            raise OSError(28, "No space left on device")
        self.space -= written
        return written

    def fileno(self):
        return self.file.fileno()

    def close(self):
        self.file.close()


def test_nothing_is_lost_if_the_disk_is_full_for_a_while(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    disk = FullDisk(open(tmp_path / "findings.jsonl", "wb", buffering=0), 100)
    monkeypatch.setattr("builtins.open", lambda *args, **options: disk)
    with pytest.warns(UserWarning, match="cannot be written .* findings wait in memory until it can") as said:
        journal.write([event(1)])
        journal.write([event(2)])
    assert len(said) == 1
    disk.space = 10**6
    journal.write([event(3)])
    journal.close()
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="line 1 is ignored"):
        assert [each.finding.number for each in read_events(tmp_path)] == [1, 2, 3]


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file")
    with pytest.warns(UserWarning, match="cannot be written") as said:
        journal.write([event()])
        journal.write_summary({})
        journal.close()
    assert len(said) == 1


def test_a_journal_that_is_removed_is_one_warning_and_what_follows_is_in_a_new_one(tmp_path):
    journal = Journal(tmp_path / "run")
    journal.write([event(1)])
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(UserWarning, match="findings.jsonl was removed while the fit ran; what follows is in a new file") as said:
        journal.write([event(2)])
        journal.write([event(3)])
    journal.close()
    assert len(said) == 1 and [each.finding.number for each in read_events(tmp_path / "run")] == [2, 3]


def test_a_summary_for_which_there_is_no_space_is_a_warning_and_leaves_the_earlier_one(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.write_summary({"line": "earlier"})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(UserWarning, match=r"summary.json cannot be written \(.*No space left.*\); the training goes on"):
        journal.write_summary({"line": "later"})
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert read_findings(tmp_path).summary == {"line": "earlier"}
