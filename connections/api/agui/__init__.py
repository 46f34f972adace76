"""The Agent-User Interaction protocol (AG-UI 1.0): `/v1/ag-ui`."""
