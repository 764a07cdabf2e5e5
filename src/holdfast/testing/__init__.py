"""Proofs that an implementation of your own can be put to. They need pytest or nothing but `assert`."""
