"""`midstream admin`: the admin API on the command line."""
