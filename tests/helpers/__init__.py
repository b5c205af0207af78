"""Helpers that several test files share; `helpers.module:Name` also names classes in configs."""
