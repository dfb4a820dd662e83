"""The sections of a report, a module each: `section(subject)` returns it, or None where it has nothing to show."""
