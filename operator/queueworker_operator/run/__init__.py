"""What runs the passes: observe, plan, act."""
