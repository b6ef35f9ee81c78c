"""Prints how evenly tasks were distributed: the time from the start of the first task to the end of the last, as a
multiple of the time that workers with speeds of 1, 1 and 1/4 need if none of them ever waits.

    python tests/uneven_report.py FOLDER SECONDS TASKS
"""

import collections
import pathlib
import sys

folder, seconds, tasks = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
done = [line.split() for line in (folder / "done").read_text().splitlines()]
assert len(done) == tasks, f"{len(done)} tasks ended, not {tasks}"
ideal = tasks * seconds / 2.25
taken = max(float(end) for _, _, end in done) - min(float(start) for _, start, _ in done)
counts = sorted(collections.Counter(worker for worker, _, _ in done).items())
print(f"{tasks} tasks in {taken:.1f} s, {taken / ideal:.3f} of the ideal {ideal:.1f} s; tasks per worker: {dict(counts)}")
