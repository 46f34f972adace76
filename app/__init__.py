"""The composition root: settings, start and stop, routes, the page, metrics, logs and the command line."""
