"""The sections of a report, a module each: `section(subject)` returns it, or None where it has nothing to show.

`results.report.report` puts them in order: `answer` and `sought` (a sweep of hyperparameters), then of trials `trials`,
`followed` (the stages after them), `scaling`, `accuracy` and `device_types`, on paper `predicted`, `memory`,
`step_over_time` and `cost`, and at the end `learned`, `knobs`, `published` and `provenance`. Each finds one sentence to
say, and then the tables and plots that show it.
"""
