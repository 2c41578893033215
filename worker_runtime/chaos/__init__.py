"""Killing workers for a living: publishes numbered messages, runs workers, kills, pauses and cuts them at
random moments, and compares at the end what an append-only file outside the broker says with the broker."""
