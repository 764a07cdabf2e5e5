"""Hosts: processes that run replicas of nodes against the real world."""
