"""Prints the number of right snippets after the tests."""


def pytest_terminal_summary(terminalreporter):
    import run_snippets

    reports = [
        report
        for kind in ("passed", "failed")
        for report in terminalreporter.stats.get(kind, [])
        if getattr(report, "when", None) == "call"
    ]
    outcomes = [dict(report.user_properties).get("outcome") for report in reports]
    outcomes = [outcome for outcome in outcomes if outcome is not None]
    if outcomes:
        terminalreporter.write_line(run_snippets.summary(outcomes))
