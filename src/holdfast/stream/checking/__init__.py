"""Checking what lies on the disk and mending it: `verify` and `survey` find, `repair` and `boundary_mend` mend."""
