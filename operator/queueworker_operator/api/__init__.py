"""The QueueWorker resource: its models, rules, names and reasons. Imports nothing else of the operator."""
