"""The QueueWorker resource: its models, rules, names and reasons. Imports nothing of the rest of the operator."""
