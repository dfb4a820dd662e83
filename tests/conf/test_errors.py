"""Messages for the person at the keyboard."""

from __future__ import annotations

from conf.errors import ConfigError


def test_of_a_very_long_value_the_beginning_and_its_length_are_shown() -> None:
    message = str(ConfigError("batch.global_batch_size", "9" * 10_000, "is no number of sequences", "Correct it."))
    assert len(message) < 400
    assert message.startswith("batch.global_batch_size = '999")
    assert "… (10,002 characters)" in message
    assert message.endswith("is no number of sequences. Correct it.")
