"""Batch jobs on message data: functions from frames to frames or to a result."""
