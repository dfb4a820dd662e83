"""`trisweep logs`: what a trial has printed, and what it goes on printing."""
