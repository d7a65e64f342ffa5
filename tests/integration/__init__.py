"""Tests of parts together on this machine, with the real daemon."""
