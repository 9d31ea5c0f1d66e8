"""Random schedules of stragglers, late uploads, crashes of clients, replays and corrupted messages."""

from __future__ import annotations

from hypothesis import settings

from support.schedules import Schedules

TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
