"""Tables and plots that sections are put together of."""
