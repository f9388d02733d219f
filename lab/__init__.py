"""The laboratory: replays and measurements for whoever changes the planner. Not part of the product."""
