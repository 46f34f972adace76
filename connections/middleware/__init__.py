"""Which requests are served at all, by address, host name and origin."""
