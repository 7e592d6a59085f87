"""Run folders: submitted, listed, requeued, cancelled."""
