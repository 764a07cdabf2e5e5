"""The log that streams live in: frames in segments, committed by group, fenced by manifest, read by bucket."""
