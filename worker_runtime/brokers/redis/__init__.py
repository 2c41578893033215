"""Queues in Redis lists, wire-compatible with utopia-php/queue 4."""
