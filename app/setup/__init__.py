"""Builds the parts that the settings name: authentication, limits, the store, engines, tools."""
