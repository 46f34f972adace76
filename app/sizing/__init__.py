"""Estimates what a number of users needs: `midstream size`."""
